"""Deploying a registered model: a canary that takes traffic in steps, a judge, promotion or rollback, and no lost request.

Start with `job.deploy`. `rollout` is the one state machine; its targets are `local` (Envoy and two TF Serving-compatible
servers on this machine) and `kserve` (a cluster).
"""
