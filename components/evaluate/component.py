"""KFP component `evaluate`."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, ClassificationMetrics, Input, Metrics, Model, Output

from paraserve.components import images


@dsl.component(base_image=images.TENSORFLOW, install_kfp_package=False)
def evaluate(
    model: Input[Model],
    shards: str,
    registry: str,
    model_name: str,
    run_folder: str,
    metrics: Output[Metrics],
    curves: Output[ClassificationMetrics],
    report: Output[HTML],
    min_auc: float = 0.55,
    max_logloss: float = 1.0,
    max_calibration_error: float = 0.1,
    max_auc_drop: float = 0.002,
    max_logloss_increase: float = 0.005,
    slice_columns: str = "",
) -> NamedTuple("Outputs", [("Output", str), ("evaluation", str)]):  # type: ignore[valid-type]
    """Judges a model on the test split, by thresholds and against the champion on the same examples.

    Args:
        model: The SavedModel that train exported.
        shards: Place of the packed data set.
        registry: Path or gs:// address of the registry, which knows the champion.
        model_name: Small letters, digits and -, at most 40 characters.
        run_folder: Place where the steps of all runs write their records.
        metrics: AUC, log loss, calibration error and counts.
        curves: ROC curve, and confusion matrix at 0.5.
        report: The report for people.
        min_auc: Least area under the ROC curve, 0 to 1.
        max_logloss: Most log loss, in nats.
        max_calibration_error: Most expected calibration error, 0 to 1.
        max_auc_drop: Most by which the AUC may be below the champion's; negative demands a gain.
        max_logloss_increase: Most by which the log loss may be above the champion's; negative demands a gain.
        slice_columns: Categorical columns whose values are looked at one by one, separated by commas.

    Returns:
        Output: promote or reject. kfp.local's `dsl.If` finds a step's output by no other name.
        evaluation: All that was found, as JSON, for register.
    """
    from paraserve.components import run_folder as runs
    from paraserve.components.evaluate.config import EvaluateConfig, Thresholds, columns_of
    from paraserve.components.evaluate.job import evaluate_model
    from paraserve.components.evaluate.metrics import confusion, roc

    with runs.step(run_folder, "evaluate") as outputs:
        config = EvaluateConfig(
            model=model.path,
            shards=shards,
            registry=registry,
            model_name=model_name,
            report=report.path,
            slice_columns=columns_of(slice_columns),
            thresholds=Thresholds(
                min_auc=min_auc,
                max_logloss=max_logloss,
                max_calibration_error=max_calibration_error,
                max_auc_drop=max_auc_drop,
                max_logloss_increase=max_logloss_increase,
            ),
        )
        found = evaluate_model(config)
        gate = {"decision": found.gate.decision, "reasons": found.gate.reasons}
        outputs |= {"metrics": found.scores.to_json(), "gate": gate, "champion": found.champion_json()}
        for name, value in found.scores.to_json().items():
            metrics.log_metric(name, value)
        curve = roc(found.labels, found.probabilities)
        curves.log_roc_curve(curve.false_positive_rate, curve.true_positive_rate, curve.thresholds)
        curves.log_confusion_matrix(["negative", "positive"], confusion(found.labels, found.probabilities))
        print(f"{found.gate.decision}: {' '.join(found.gate.reasons)}", flush=True)
    return found.gate.decision, found.to_json()
