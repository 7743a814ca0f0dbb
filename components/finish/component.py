"""KFP component of the finish step; `pipelines.train_to_serve` puts it into the exit handler."""

from kfp import dsl

from paraserve.components import images


@dsl.component(base_image=images.LIGHT, install_kfp_package=False)
def finish(run_folder: str, status: dsl.PipelineTaskFinalStatus):  # type: ignore[no-untyped-def]
    """Writes RUN_FOLDER/RUN_ID/result.json from the steps' records, and says how the run ended.

    Args:
        run_folder: Where every run has its folder.
        status: How the steps ended, from Kubeflow.
    """
    from paraserve.components.finish.finish import finish_run

    finish_run(run_folder, status.state)
