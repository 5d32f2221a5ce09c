"""A server that speaks the protocol of the Hugging Face hub, and a second one for the files that it redirects to.

    with HubServer() as hub:
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": b".."})
        run(.., env={"HF_ENDPOINT": hub.url})

Names ending in .safetensors, .bin, .gguf, .parquet or .model are LFS files: the hub answers their address with a redirect to the
other server, and says their SHA-256 in X-Linked-Etag. hub.requests has all requests. hub.faults makes servers fail:
{"model.safetensors": [fault, ..]}: each GET of the file (HEAD has "HEAD model.safetensors", the list "list org/name") takes the first fault of the list and
calls it with the handler; a fault that returns True has answered. A fault with `stays` is not taken off the list, and one with
`applies` only serves requests for which that is true.
"""

import hashlib
import http.client
import http.server
import json
import re
import select
import socket
import threading
import time
import urllib.parse

from program import ProgramTest

LFS = (".safetensors", ".bin", ".gguf", ".parquet", ".model")


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Repository:
    def __init__(self, files, kind="model", gated=False, private=False, renamed=None, revisions=None):
        self.files, self.kind, self.gated, self.private, self.renamed = files, kind, gated, private, renamed
        text = json.dumps({name: sha256(data) for name, data in sorted(files.items())})
        self.commit = hashlib.sha1(text.encode()).hexdigest()
        self.revisions = {"main": self.commit, self.commit: self.commit, **(revisions or {})}
        self.answer = None  # instead of the list of files


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, text):
        self.answer(status, json.dumps({"error": text}).encode(), X_Error_Code=code, X_Error_Message=text)

    def fault(self, name):
        """True if a fault has answered."""
        hub = self.server.hub
        with hub.lock:
            faults = hub.faults.get(name) or []
            fault = next((fault for fault in faults if getattr(fault, "applies", lambda _: True)(self)), None)
            if fault and not getattr(fault, "stays", False):
                faults.remove(fault)
        return bool(fault) and fault(self) is True

    def send_file(self, data, etag):
        """Answers ranges."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self.answer(200, data, ETag=etag, Accept_Ranges="bytes")
        first = int(match[1])
        last = min(int(match[2] or len(data) - 1), len(data) - 1)
        if first >= len(data):
            return self.answer(416, Content_Range=f"bytes */{len(data)}")
        return self.answer(206, data[first:last + 1], ETag=etag, Content_Range=f"bytes {first}-{last}/{len(data)}")

    def do_GET(self):
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.server.role, self.command, self.path, dict(self.headers.items())))
        try:
            self.serve(hub)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET

    # ---- the other server ----

    def serve_blob(self, hub):
        name = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["name"][0]
        data = hub.blobs.get(self.path.split("?")[0].rsplit("/", 1)[1])
        if data is None:
            return self.answer(404)
        if not (self.command == "GET" and self.fault(name)):
            self.send_file(data, '"cdn"')

    # ---- the hub ----

    def serve(self, hub):
        if self.server.role == "files":
            return self.serve_blob(hub)
        path = urllib.parse.urlsplit(self.path).path
        match = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        if match:
            return self.serve_list(hub, *match.groups())
        match = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if match:
            return self.serve_file(hub, *match.groups())
        data = hub.plain.get(path)
        if data is None:
            return self.answer(404)
        if not self.fault(path):
            self.send_file(data, f'"{sha256(data)[:16]}"')

    def find(self, hub, kind, name):
        """The repository, if the token may read it; else answers and returns None."""
        repository = hub.repositories.get((kind, name))
        token = self.headers.get("Authorization", "")
        if token and token != f"Bearer {hub.token}":
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not token):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif repository.renamed:
            self.answer(307, Location=self.path.replace(name, repository.renamed))
        else:
            return repository
        return None

    def serve_list(self, hub, kind, name, what, revision):
        if self.fault(f"list {name}"):
            return
        repository = self.find(hub, kind, name)
        if repository is None:
            return
        revision = urllib.parse.unquote(revision)
        commit = repository.revisions.get(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if what == "tree":
            answer = [{"type": "file", "path": path, "size": len(data), "oid": git_hash(data),
                       **({"lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 134}} if path.endswith(LFS) else {})}
                      for path, data in repository.files.items()]
        else:
            answer = {"id": name, "sha": commit, "private": repository.private, "gated": repository.gated, "tags": [],
                      "downloads": 0, "likes": 0, "siblings": [{"rfilename": path} for path in repository.files]}
        body = repository.answer if repository.answer is not None else json.dumps(answer).encode()
        self.answer(200, body, Content_Type="application/json")

    def serve_file(self, hub, folder, name, revision, path):
        revision, path = urllib.parse.unquote(revision), urllib.parse.unquote(path)
        repository = self.find(hub, "dataset" if folder else "model", name)
        if repository is None:
            return
        if repository.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.refuse(401, "GatedRepo", "Access to the model is restricted")
        if repository.gated == "refused":
            return self.refuse(403, "GatedRepo", "Access to the model is restricted")
        commit = repository.revisions.get(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in repository.files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        data = repository.files[path]
        if self.command == "HEAD" and self.fault(f"HEAD {path}"):
            return
        if path.endswith(LFS):
            hub.blobs[sha256(data)] = data
            query = urllib.parse.urlencode({"name": path, "X-Signature": "SECRET-SIGNATURE"})
            return self.answer(302, X_Repo_Commit=commit, X_Linked_Etag=f'"{sha256(data)}"', X_Linked_Size=str(len(data)),
                               ETag='"pointer"', Location=f"{hub.files_url}/blobs/{sha256(data)}?{query}")
        if self.command == "GET" and self.fault(path):
            return
        if self.command == "HEAD":
            return self.answer(200, X_Repo_Commit=commit, ETag=f'"{git_hash(data)}"', Accept_Ranges="bytes",
                               Content_Length=str(len(data)))
        self.send_file(data, f'"{git_hash(data)}"')


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        """Clients end connections when they please."""


class HubServer:
    token = "hf_TESTTOKENthatmustnotleak"

    def __init__(self, tls=None):
        """tls: an ssl.SSLContext with a certificate, for servers that speak https."""
        self.lock = threading.Lock()
        self.repositories, self.blobs, self.plain, self.requests, self.faults = {}, {}, {}, [], {}
        self.servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server, role in zip(self.servers, ("hub", "files")):
            server.hub, server.role = self, role
            if tls:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        scheme = "https" if tls else "http"
        self.url, self.files_url = (f"{scheme}://127.0.0.1:{server.server_address[1]}" for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def add(self, name, files, kind="model", **about):
        self.repositories[kind, name] = repository = Repository(files, kind, **about)
        return repository

    def clear(self):
        with self.lock:
            self.requests, self.faults = [], {}

    def asked(self, role, word=""):
        """The (method, path, headers) of requests that name the word."""
        with self.lock:
            return [request[1:] for request in self.requests if request[0] == role and word in request[2]]


# ---- a proxy ----

class ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def is_refused(self):
        proxy = self.server
        proxy.asked.append((self.command, self.path))
        if not proxy.login or self.headers.get("Proxy-Authorization") == proxy.login:
            return False
        self.send_response(407)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def do_GET(self):
        if self.is_refused():
            return
        url = urllib.parse.urlsplit(self.path)
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        server = http.client.HTTPConnection(url.netloc)
        server.request(self.command, self.path[len(f"http://{url.netloc}"):], headers=headers)
        answer = server.getresponse()
        body = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        server.close()

    do_HEAD = do_GET

    def do_CONNECT(self):
        if self.is_refused():
            return
        host, port = self.path.rsplit(":", 1)
        self.close_connection = True
        with socket.create_connection((host, int(port))) as server:
            self.send_response_only(200)
            self.end_headers()
            ends = {self.connection: server, server: self.connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    ends[end].sendall(data)


class Proxy:
    """A proxy for http and https. asked: (method, target) of the requests. login: the Proxy-Authorization that it wants."""

    def __init__(self, login=None):
        self.server = Server(("127.0.0.1", 0), ProxyHandler)
        self.server.asked, self.server.login = [], login
        self.asked, self.host = self.server.asked, f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


# ---- faults ----

def status(code, **headers):
    def fault(handler):
        handler.answer(code, **headers)
        return True
    return fault


def always(fault):
    def repeated(handler):
        fault(handler)
        return True
    repeated.stays = True
    return repeated


def of_range(first, fault):
    """For the request of the bytes from `first` on."""
    def chosen(handler):
        return fault(handler)
    chosen.applies = lambda handler: handler.headers.get("Range", "").startswith(f"bytes={first}-")
    return chosen


def cut(after):
    """Promises the whole range, sends its first bytes, and closes the connection."""
    def fault(handler):
        finish = handler.wfile
        handler.wfile = Limited(finish, after)
        handler.close_connection = True
        return False
    return fault


class Limited:
    """Lets the headers and the first bytes of the body through."""

    def __init__(self, file, left):
        self.file, self.left, self.in_body = file, left, False

    def write(self, data):
        if not self.in_body:
            self.in_body = data.endswith(b"\r\n\r\n")
            return self.file.write(data)
        data = data[:self.left]
        self.left -= len(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()

    @property
    def closed(self):
        return self.file.closed


class Paused(Limited):
    """Waits after the first bytes of the body."""

    def write(self, data):
        if self.in_body and self.left:
            self.file.write(data[:self.left])
            time.sleep(1)
            data, self.left = data[self.left:], 0
            return self.file.write(data)
        self.in_body = self.in_body or data.endswith(b"\r\n\r\n")
        return self.file.write(data)


def pause(after):
    def fault(handler):
        handler.wfile = Paused(handler.wfile, after)
        return False
    return fault


def without_ranges(handler):
    del handler.headers["Range"]
    return False


def wrong_bytes(handler):
    """The right length, another content."""
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"])
    first, last = int(match[1]), int(match[2])
    handler.answer(206, b"x" * (last + 1 - first), Content_Range=f"bytes {first}-{last}/{last + 1}")
    return True


def raw(*pieces):
    """Sends these bytes, the last piece again and again if it is given twice."""
    def fault(handler):
        handler.close_connection = True
        for piece in pieces:
            handler.wfile.write(piece)
        while len(pieces) > 1 and pieces[-1] == pieces[-2]:
            handler.wfile.write(pieces[-1])
        return True
    fault.stays = True
    return fault


def slow(length):
    """A byte now and then, for as long as the client waits."""
    def fault(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        for _ in range(600):
            handler.wfile.write(b"x")
            time.sleep(0.05)
        return True
    return fault


class HubTest(ProgramTest):
    """Tests with one hub, hub."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = HubServer()

    @classmethod
    def tearDownClass(cls):
        cls.hub.close()
        super().tearDownClass()
