"""Stand-alone: a server that speaks vLLM's, SGLang's or llama.cpp's protocol, or a worker's, and misbehaves on demand.

Which one it is follows from the command line that an adapter gives it. It has no model: a hit is the longest prefix
that it has seen, rounded down to its granule, and the output follows from the prompt, so that without a fault every
request is explained by the engine's law. Environment:

    HITPARITY_FAULT          name of the fault, see FAULTS at the end; none: an honest engine
    HITPARITY_FAULT_AFTER    completions that are answered honestly before (default 5)
    HITPARITY_FAULT_ANSWERED file that gets a line for every completion that is answered to its end
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, takewhile

FAULT = os.environ.get("HITPARITY_FAULT", "")
AFTER = int(os.environ.get("HITPARITY_FAULT_AFTER", "5"))
VOCABULARY, CONTEXT, BLOCK = 2048, 8192, 16
DEAF = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
FOREVER = 600


@dataclass(frozen=True)
class Answer:
    """What is said about one completion."""

    id: str
    ids: list
    prompt_len: int
    hit: object
    start: int
    output: list
    logprob: object = -1.0


class Cache:
    """Everything computed since the last reset; llama.cpp's one slot keeps the latest sequence only."""

    def __init__(self, granule, slot=False):
        self.granule, self.slot, self.sequences, self.served = granule, slot, [], 0

    def serve(self, request_id, ids, max_tokens):
        self.served += 1
        common = max((sum(1 for _ in takewhile(bool, map(int.__eq__, ids, s))) for s in self.sequences), default=0)
        hit = min(common, len(ids) - 1) // self.granule * self.granule
        output = [5 + zlib.crc32(json.dumps([ids, n]).encode()) % 1000 for n in range(max_tokens)]
        self.sequences = ([] if self.slot else self.sequences) + [ids + output[:-1]]
        answer = Answer(request_id, ids, len(ids), hit, hit, output)
        return LIES[FAULT](answer, self) if FAULT in LIES and self.due else answer

    @property
    def due(self):
        return self.served > AFTER

    def reset(self):
        if FAULT != "reset_lies":
            self.sequences.clear()


class Vllm:
    completions, resets = "/v1/completions", "/reset_prefix_cache"

    def __init__(self):
        self.cache = Cache(BLOCK)
        facts = {
            "engine": "vllm", "version": "9.9.0" if FAULT == "untested_version" else "0.32.0", "device": "cpu",
            "dtype": "float32", "granule": BLOCK, "groups": ["full"], "context_len": CONTEXT, "vocab_size": VOCABULARY,
            "can_salt": True,
            "options": {"block_size": BLOCK, "enable_prefix_caching": True, "num_gpu_blocks": 4096,
                        "speculative_method": None},
        }  # fmt: skip
        if FAULT == "facts_wrong":
            facts["granule"] = "sixteen"
        if FAULT != "no_probe":
            self.probe({"facts": facts})

    def probe(self, row):
        with open(os.environ["HITPARITY_VLLM_PROBE"], "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def get(self, path):
        return {} if path == "/health" else None

    def reset_answer(self):
        return {"success": True}

    def answer(self, body):
        answer = self.cache.serve("cmpl-" + body["request_id"], body["prompt"], body["max_tokens"])
        self.probe({"id": f"cmpl-{body['request_id']}-0", "start": answer.start, "end": answer.prompt_len,
                    "preemptions": 0})  # fmt: skip
        return answer

    def events(self, answer):
        for number, token in enumerate(answer.output):
            choice = {"token_ids": [token], "logprobs": {"token_logprobs": [answer.logprob]}}
            if number == 0:
                choice["prompt_token_ids"] = answer.ids
            yield {"id": answer.id, "choices": [choice]}
        details = {"cached_tokens": answer.hit}
        usage = {"prompt_tokens": answer.prompt_len, "prompt_tokens_details": details}
        yield {"id": answer.id, "choices": [], "usage": usage}

    def error(self, code):
        return {"error": {"message": "made-up trouble", "code": code}}


class Sglang:
    completions, resets = "/generate", "/flush_cache"

    def __init__(self):
        self.cache = Cache(1)

    def get(self, path):
        if path == "/model_info":
            return {"model_type": "llama" if FAULT == "another_model" else "qwen3"}
        if path != "/server_info":
            return None
        names = (
            "context_length", "max_prefill_tokens", "attention_backend", "kv_cache_dtype", "mem_fraction_static",
            "radix_eviction_policy", "schedule_policy", "speculative_algorithm", "tp_size",
        )  # fmt: skip
        facts = dict.fromkeys(names) | {
            "version": "9.9.0" if FAULT == "untested_version" else "0.5.23", "page_size": 1, "device": "cpu",
            "max_total_num_tokens": 32768, "max_req_input_len": CONTEXT, "chunked_prefill_size": 4096,
            "disable_radix_cache": False, "disable_overlap_schedule": True, "enable_hierarchical_cache": False,
            "dtype": "float32", "incremental_streaming_output": False,
        }  # fmt: skip
        return [facts] if FAULT == "facts_wrong" else facts

    def reset_answer(self):
        return "Cache flushed."

    def answer(self, body):
        answer = self.cache.serve(body["rid"], body["input_ids"], body["sampling_params"]["max_new_tokens"])
        if FAULT != "no_probe":
            row = {"rid": body["rid"], "first": answer.start, "last": len(answer.ids) - 1}
            with open(os.environ["HITPARITY_PROBE_LOG"], "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return answer

    def events(self, answer):
        for number in range(1, len(answer.output) + 1):
            info = {
                "id": answer.id, "prompt_tokens": answer.prompt_len, "cached_tokens": answer.hit,
                "finish_reason": {"type": "length"} if number == len(answer.output) else None,
                "output_token_logprobs": [[answer.logprob, 0, None]],
            }  # fmt: skip
            yield {"output_ids": answer.output[:number], "meta_info": info}

    def error(self, code):
        return {"error": {"message": "made-up trouble", "code": code}}


class LlamaCpp:
    completions, resets = "/completion", "/slots/0?action=erase"

    def __init__(self):
        self.cache = Cache(1, slot=True)

    def get(self, path):
        if path == "/props":
            facts = {
                "build_info": "b99999" if FAULT == "untested_version" else "b11549-made-up", "model_ftype": "all F32",
                "total_slots": 1, "default_generation_settings": {"n_ctx": CONTEXT},
            }  # fmt: skip
            return [facts] if FAULT == "facts_wrong" else facts
        if path == "/v1/models":
            return {"data": [{"meta": {"n_vocab": 32000 if FAULT == "another_model" else VOCABULARY}}]}
        return {} if path == "/health" else None

    def reset_answer(self):
        return {"n_erased": 0}

    def answer(self, body):
        answer = self.cache.serve("", body["prompt"], body["n_predict"])
        task = self.cache.served
        print(f"slot operator(): id  0 | task {task} | cached n_tokens = 0, memory_seq_rm [{answer.start}, end)")
        print(f"slot release: id  0 | task {task} | stop processing", flush=True)
        return answer

    def events(self, answer):
        for token in answer.output:
            yield {"tokens": [token], "stop": False, "completion_probabilities": [{"logprob": answer.logprob}]}
        computed = answer.prompt_len - answer.hit if isinstance(answer.hit, int) else 0
        timings = {"cache_n": answer.hit, "prompt_n": computed}
        yield {"tokens": [], "stop": True, "id_slot": 0, "timings": timings, "tokens_evaluated": answer.prompt_len,
               "tokens_predicted": len(answer.output)}  # fmt: skip

    def error(self, code):
        return {"error": {"message": "made-up trouble", "code": code}}


def handler(dialect):
    """The HTTP side of a dialect, with the faults that lie below it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if FAULT == "facts_html" and self.path != "/health":
                self.plain(b"<html>It works!</html>")
            elif (found := dialect.get(self.path)) is None:
                self.send_error(404)
            else:
                self.json(found)

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path.split("?")[0] == dialect.resets.split("?")[0]:
                self.reset()
            elif self.path != dialect.completions:
                self.send_error(404)
            elif dialect.cache.served >= AFTER and FAULT in BELOW:
                BELOW[FAULT](self, dialect, json.loads(body))
            else:
                self.stream(dialect, json.loads(body))
                if FAULT == "killed_between" and dialect.cache.due:
                    die(0.05)
                if FAULT == "port_lost" and dialect.cache.due:
                    self.server.socket.close()

        def reset(self):
            if FAULT == "reset_refused":
                self.json({"error": {"code": 501, "message": "not supported"}}, 501)
            elif FAULT == "reset_oversized" and dialect.cache.due:
                self.plain(b" " * (65 << 20))
            elif FAULT == "reset_vague" and dialect.cache.due:
                self.plain(b"[]")
            else:
                dialect.cache.reset()
                self.json(dialect.reset_answer())

        def stream(self, dialect, body, events=None):
            answer = dialect.answer(body)
            events = list(dialect.events(answer))
            self.head()
            for event in events[:-1]:
                self.event(event)
            answered(answer)
            self.event(events[-1])
            self.wfile.write(b"data: [DONE]\n\n")

        def first_event(self, dialect, body):
            self.head()
            body |= {"max_tokens": 3, "n_predict": 3}
            if "sampling_params" in body:
                body["sampling_params"]["max_new_tokens"] = 3
            self.event(next(iter(dialect.events(dialect.answer(body)))))

        def head(self):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n")

        def event(self, event):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()

        def json(self, value, status=200):
            self.plain(json.dumps(value).encode(), status)

        def plain(self, data, status=200):
            self.wfile.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            self.close_connection = True

        def log_message(self, *_):
            """Quiet."""

    return Handler


def answered(answer):
    with open(os.environ["HITPARITY_FAULT_ANSWERED"], "a", encoding="utf-8") as file:
        file.write(f"{answer.id} {answer.prompt_len}\n")


def die(after_s=0.0):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory():
    """A real one, within a limit of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    try:
        bytearray(2 << 30)
    except MemoryError:
        print("MemoryError: made-up model does not fit", file=sys.stderr, flush=True)
        os._exit(1)


def killed_by_child():
    """As SGLang's scheduler does when it fails."""
    if os.fork() == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    time.sleep(FOREVER)


def worker():
    """`adapters/worker.py`, version 1, as the reference engine's worker."""
    say = sys.stdout.write
    facts = {"device": "cpu", "dtype": "float32", "granule": 1, "groups": ["full"], "context_len": CONTEXT,
             "vocab_size": VOCABULARY}  # fmt: skip
    hello = {"hello": 2 if FAULT == "another_protocol" else 1, "facts": facts}
    if FAULT == "facts_wrong":
        facts["granule"] = "sixteen"
    say(("Loading weights: 100%" if FAULT == "facts_html" else json.dumps(hello)) + "\n")
    sys.stdout.flush()
    cache = Cache(1)
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "close":
            return
        if message["op"] == "reset":
            cache.reset()
            say(json.dumps({"ok": True, "reset": FAULT != "reset_refused"}) + "\n")
        else:
            if cache.served >= AFTER and FAULT in BELOW:
                BELOW[FAULT](None, None, message)
            asked = message["requests"][0]
            answer = cache.serve(asked["request_id"], asked["ids"], asked["max_tokens"])
            now = time.monotonic_ns()
            reply = {
                "request_id": answer.id, "prompt_len": answer.prompt_len, "hit_len": answer.hit, "hit_source": "x",
                "position_start": answer.start, "position_source": "y", "output_ids": answer.output,
                "first_logprob": answer.logprob, "sent_ns": now, "first_token_ns": now, "done_ns": now, "steps": None,
            }  # fmt: skip
            if FAULT == "clock_back" and cache.due:
                reply["done_ns"] = now - 10**9
            answered(answer)
            say(json.dumps({"ok": True, "replies": [reply]}) + "\n")
        sys.stdout.flush()


def raw(data, forever=False):
    """Bytes in place of an answer; `forever`: again and again."""

    def fault(http, dialect, body):
        write = sys.stdout.buffer.write if http is None else http.wfile.write
        if http is not None:
            http.head()
        write(data)
        while forever:
            write(data)
            time.sleep(0.01)
        (sys.stdout if http is None else http.wfile).flush()
        if http is None:
            time.sleep(FOREVER)

    return fault


def after_first_event(then):
    def fault(http, dialect, body):
        if http is not None:
            http.first_event(dialect, body)
        then(http)

    return fault


def refuse(status, inside=False):
    def fault(http, dialect, body):
        if http is None:
            print(json.dumps({"ok": False, "refused" if status < 500 else "failed": "made-up trouble"}), flush=True)
            time.sleep(FOREVER)
        elif inside:
            http.head()
            http.event(dialect.error(status))
        else:
            http.json(dialect.error(status), status)

    return fault


def imposter():
    """Another program gets hold of the port first and answers; the engine sees it too late."""
    if os.fork():
        time.sleep(1)
        sys.exit("OSError: [Errno 98] address already in use")
    os.setsid()
    threading.Timer(4, os._exit, (0,)).start()


def slow(http, dialect, body):
    print("in flight", file=sys.stderr, flush=True)
    time.sleep(1.5)
    http.stream(dialect, body)


def hang(*_):
    print("in flight", file=sys.stderr, flush=True)
    time.sleep(FOREVER)


BELOW = {
    "slow": slow,
    "killed_in_prefill": lambda *_: die(),
    "killed_by_child": lambda *_: killed_by_child(),
    "oom_in_prefill": lambda *_: out_of_memory(),
    "hang_in_prefill": hang,
    "killed_in_stream": after_first_event(lambda http: die()),
    "oom_in_stream": after_first_event(lambda http: out_of_memory()),
    "stall_in_stream": after_first_event(lambda http: time.sleep(FOREVER)),
    "cut_after_event": after_first_event(lambda http: None),
    "cut_in_event": after_first_event(lambda http: http.wfile.write(b'data: {"tok')),
    "closed_unanswered": lambda http, *_: http.connection.close(),
    "no_http": lambda http, *_: http.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "short_body": lambda http, *_: http.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\ndata: {"id":'),
    "drips_comments": raw(b": ping\n\n", forever=True),
    "endless_events": raw(b'data: {"choices": [], "meta_info": {"finish_reason": null}, "output_ids": []}\n\n', True),
    "endless_line": raw(b"x" * (1 << 20), forever=True),
    "not_json": raw(b"data: {'id': 1}\n\n"),
    "not_utf8": raw(b'data: {"id": "\xff\xfe"}\n\n'),
    "not_an_object": raw(b"data: [1, 2]\n\n"),
    "another_object": raw(b'data: {"hello": "world"}\n\n'),
    "nested": raw(b"data: " + b"[" * 100_000 + b"\n\n"),
    "long_number": raw(b'data: {"choices": ' + b"9" * 5000 + b"}\n\n"),
    "oversized_line": raw(b"data: " + b"x" * (9 << 20) + b"\n\n"),
    "refused": refuse(400),
    "overloaded": refuse(503),
    "refused_in_stream": refuse(400, inside=True),
    "failed_in_stream": refuse(500, inside=True),
}
"""What happens in place of an honest answer: `(HTTP handler or None in a worker, dialect, body)`."""

LIES = {
    "prompt_miscount": lambda a, c: replace(a, prompt_len=a.prompt_len + 1, hit=a.hit),
    "hit_negative": lambda a, c: replace(a, hit=-16),
    "hit_too_large": lambda a, c: replace(a, hit=a.prompt_len + 16),
    "hit_of_the_whole": lambda a, c: replace(a, hit=a.prompt_len),
    "hit_huge": lambda a, c: replace(a, hit=10**30),
    "hit_as_text": lambda a, c: replace(a, hit="16"),
    "hit_as_float": lambda a, c: replace(a, hit=16.5),
    "hit_unsaid": lambda a, c: replace(a, hit=None),
    "hit_contradicted": lambda a, c: replace(a, hit=a.hit + 16),
    "hit_lost": lambda a, c: replace(a, hit=0, start=0),
    "hit_invented": lambda a, c: replace(a, hit=min(a.hit + 16, len(a.ids) - 1), start=min(a.hit + 16, len(a.ids) - 1)),
    "never_hits": lambda a, c: replace(a, hit=0, start=0),
    "another_id": lambda a, c: replace(a, id=a.id.replace(a.id[-1], "x") if a.id else a.id),
    "token_outside": lambda a, c: replace(a, output=[VOCABULARY + 7] * len(a.output)),
    "token_negative": lambda a, c: replace(a, output=[-1] * len(a.output)),
    "token_as_text": lambda a, c: replace(a, output=["5"] * len(a.output)),
    "too_few_tokens": lambda a, c: replace(a, output=a.output[:-1]),
    "too_many_tokens": lambda a, c: replace(a, output=[*a.output, 5]),
    "warm_differs": lambda a, c: replace(a, output=[1999] * len(a.output)) if a.hit else a,
    "cold_differs": lambda a, c: a if a.hit else replace(a, output=[1000 + c.served] * len(a.output)),
    "logprob_nan": lambda a, c: replace(a, logprob=float("nan")),
    "logprob_positive": lambda a, c: replace(a, logprob=3.0),
    "logprob_text": lambda a, c: replace(a, logprob="low"),
}
"""What is said in place of the truth, once AFTER completions are answered."""

STARTS = {
    "start_crash": lambda: sys.exit("RuntimeError: made-up kernel is missing"),
    "start_killed": die,
    "start_oom": out_of_memory,
    "start_hang": lambda: time.sleep(FOREVER),
    "start_deaf": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(FOREVER)),
    "imposter": imposter,
    "deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "deaf_child": lambda: subprocess.Popen(DEAF),
    "fails_at_stop": lambda: signal.signal(signal.SIGTERM, lambda *_: os.abort()),
}
"""What happens before the server answers, or is prepared then. `deaf*`: SIGTERM is ignored."""


def main():
    arguments = sys.argv[1:]
    if FAULT in STARTS:
        STARTS[FAULT]()
    if arguments[0] == "-P":
        return worker()
    if FAULT in ("hang_in_prefill", "killed_in_prefill", "killed_in_stream", "killed_by_child"):
        subprocess.Popen(DEAF)  # what an engine that dies may leave behind
    dialect = {"vllm": Vllm, "sglang": Sglang}.get(arguments[1].split(".")[0], LlamaCpp)()
    port = int(arguments[arguments.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(dialect))
    if FAULT not in STARTS:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in count():
        time.sleep(FOREVER)
    return None


if __name__ == "__main__":
    main()
