#!/usr/bin/env python3
"""A Python function as a reward: python3 examples/reward_server.py [--scorer MODULE:FUNCTION] [--port 8000]

The function gets a list of PNG files (bytes) and as many prompts (str), and returns one number per picture; greater is
better. The module is looked for in the current folder. docs/remote-scorer.md describes the protocol.
"""
import argparse, base64, importlib, json, os, sys, threading, traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def png_size(images, prompts):
    """The scorer of a server that was told no other: minus the size of the file in kB, so that plain pictures win."""
    return [-len(image) / 1000 for image in images]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            images = [base64.b64decode(image) for image in request["images"]]
            with self.server.one_at_a_time:  # few models can be called from several threads
                scores = self.server.scorer(images, request["prompts"]) if images else []
            status, reply = 200, {"scores": [float(score) for score in scores]}
        except Exception as error:
            traceback.print_exc()
            status, reply = 500, {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scorer", default="__main__:png_size", metavar="MODULE:FUNCTION")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to be reached from other machines")
    parser.add_argument("--port", default=8000, type=int, help="0 for a free one, which is printed")
    arguments = parser.parse_args()
    sys.path.insert(0, os.getcwd())
    module, _, function = arguments.scorer.partition(":")
    scorer = getattr(importlib.import_module(module), function)  # before listening: loading a model takes time
    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)
    server.scorer = scorer
    server.one_at_a_time = threading.Lock()
    print(f"listening on http://{arguments.host}:{server.server_port}/", flush=True)
    server.serve_forever()
