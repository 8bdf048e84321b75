"""Writes request logs as a server does."""

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2


def predict_log(signature="", model="m", **inputs):
    """Make a record of a request with these inputs."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
    return log.SerializeToString()
