"""Asks a model server from threads until a number of requests is answered, through published clients; writes JSON.

    python asking.py PROTOCOL=PORT[,PROTOCOL=PORT] MODEL ROWS REQUESTS THREADS

`PROTOCOL` is `kserve-v2-http` and `kserve-v2-grpc` (tritonclient), or `rest-v1` (TensorFlow Serving's predict by REST).
ROWS is a file with batches of serialized tf.Examples. The line that is printed has for each version and batch the
answers seen, with their counts; the errors; and quantiles of the seconds of an answer.
"""

import base64
import collections
import json
import pickle
import sys
import threading
import time
import urllib.request

import numpy as np


def triton_call(module, address, model):
    client = module.InferenceServerClient(address)

    def call(rows):
        given = module.InferInput("examples", [len(rows)], "BYTES")
        given.set_data_from_numpy(np.array(rows, object))
        found = client.infer(model, [given])
        answer = found.get_response()
        version = answer["model_version"] if isinstance(answer, dict) else answer.model_version
        return version, found.as_numpy("logit").astype(np.float32).tobytes()

    return call


def rest_call(address, model):
    def call(rows):
        body = json.dumps({"instances": [{"b64": base64.b64encode(row).decode()} for row in rows]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{address}/v1/models/{model}:predict", body, headers)
        with urllib.request.urlopen(request, timeout=60) as found:
            answer = json.load(found)
        return answer["model_version"], np.array(
            [prediction["logit"] for prediction in answer["predictions"]], np.float32
        ).tobytes()

    return call


def caller(protocol, address, model):
    if protocol == "kserve-v2-http":
        import tritonclient.http

        return triton_call(tritonclient.http, address, model)
    if protocol == "kserve-v2-grpc":
        import tritonclient.grpc

        return triton_call(tritonclient.grpc, address, model)
    return rest_call(address, model)


class Seen:
    """What all threads saw."""

    def __init__(self):
        self.lock, self.taken = threading.Lock(), 0
        self.answers, self.errors, self.seconds = collections.Counter(), collections.Counter(), []


def ask(number, protocol, address, model, batches, requests, seen):
    call, draw = caller(protocol, address, model), np.random.default_rng(number)
    while True:
        with seen.lock:
            if seen.taken >= requests:
                return
            seen.taken += 1
        place, begin = int(draw.integers(len(batches))), time.perf_counter()
        try:
            version, answer = call(batches[place])
            key, kind = (str(version), place, answer.hex()), seen.answers
        except Exception as error:
            key, kind = f"{protocol}: {type(error).__name__}: {error}"[:300], seen.errors
        with seen.lock:
            kind[key] += 1
            seen.seconds.append(time.perf_counter() - begin)


def main(servers, model, rows, requests, threads):
    with open(rows, "rb") as file:
        batches = pickle.load(file)
    protocols, seen, workers = [server.split("=") for server in servers.split(",")], Seen(), []
    for number in range(int(threads)):
        protocol, port = protocols[number % len(protocols)]
        arguments = (number, protocol, f"127.0.0.1:{port}", model, batches, int(requests), seen)
        workers.append(threading.Thread(target=ask, args=arguments))
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    report = {
        "answers": [[*key, count] for key, count in seen.answers.items()],
        "errors": dict(seen.errors),
        "seconds": round(time.perf_counter() - begin, 1),
        "quantiles": [round(float(quantile), 5) for quantile in np.quantile(seen.seconds, [0.5, 0.95, 0.99, 1.0])],
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
