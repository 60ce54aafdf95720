# SPDX-License-Identifier: MIT
"""A model on the metal backend in a process of its own, which a fault may end: python play.py JSON

What to do comes as JSON and what came of it is printed as JSON; see play() in fake_metal.py.
"""

import json
import os
import sys
import time

import esker
import numpy as np
from decoding import greedy
from fake_metal import Fake


def attempt(job, found):
    for _ in range(job["times"]):
        try:
            with esker.Model(job["model"], backend="metal", **job["options"]) as model:
                try:
                    tokens, rows = greedy(model.session(), job["prompt"], job["decode"])
                    found["tokens"].append(tokens)
                    if job["logits"]:
                        np.save(job["logits"], rows)
                finally:
                    found["counters"] = model.counters
        except esker.EskerError as error:
            found["errors"].append([type(error).__name__, str(error)])


def main(text):
    job = json.loads(text)
    found = {"tokens": [], "errors": [], "counters": {}}
    begin = time.monotonic()
    attempt(job, found)
    found["seconds"] = time.monotonic() - begin
    fake = Fake(os.environ["ESKER_METAL_LIBRARY"])
    fake.settle()
    found["live"], found["faults"] = fake.live(), fake.faults()
    found["report"] = fake.report()
    names = ("dispatches", "compiled", "loaded", "command buffers run", "residency ends")
    found["counts"] = {name: fake.count(name) for name in names}
    found["blocks"] = fake.count("blocks") + fake.count("shared variables")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    # A queue that hangs by order has a thread that no one can join.
    os._exit(0)
