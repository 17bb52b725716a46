# %% base: a pool of one thread
from concurrent.futures import ThreadPoolExecutor


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.pool = write, ThreadPoolExecutor(1)
        self.last, self.copies = None, {}

    def save(self, step, tensors):
        self.wait()
        if not self.copies:
            self.copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self.copies[name].copy_(tensor)
        self.last = self.pool.submit(self.write, step, self.copies)

    def wait(self):
        last, self.last = self.last, None
        if last is not None:
            last.result()


# %% wrong: no copy
# is: idea
# says: Copy the tensors before `save` returns
# base: a pool of one thread
-        self.last = self.pool.submit(self.write, step, self.copies)
+        self.last = self.pool.submit(self.write, step, tensors)


# %% wrong: save waits until it is written
# is: idea
# says: returned only after its write had ended
# base: a pool of one thread
-        self.last = self.pool.submit(self.write, step, self.copies)
+        self.last = self.pool.submit(self.write, step, self.copies)
+        self.wait()


# %% wrong: save writes itself
# is: idea
# says: returned only after its write had ended
# base: a pool of one thread
-        self.last = self.pool.submit(self.write, step, self.copies)
+        self.write(step, self.copies)


# %% wrong: the second save does not wait
# is: slip
# says: Two writes ran at the same time
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.threads = write, []

    def save(self, step, tensors):
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        thread = threading.Thread(target=self.write, args=(step, copies))
        thread.start()
        self.threads.append(thread)

    def wait(self):
        for thread in self.threads:
            thread.join()


# %% wrong: an error is swallowed
# is: slip
# says: neither the next save nor wait
# base: a pool of one thread
-            last.result()
+            last.exception()


# %% wrong: wait does nothing
# is: slip
# says: wait.. returned while a write was still running
# base: a pool of one thread
-    def wait(self):
+    def wait(self):
+        pass
+
+    def before(self):
@@
-        self.wait()
+        self.before()


# %% wrong: new memory each time
# is: slip
# says: Each save takes new memory
# base: a pool of one thread
-        if not self.copies:
-            self.copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
+        self.copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}


# %% wrong: copied before the write has ended
# is: idea
# says: Wait for the previous write, then copy
# base: a pool of one thread
-        self.wait()
@@
-        self.last = self.pool.submit(self.write, step, self.copies)
+        self.wait()
+        self.last = self.pool.submit(self.write, step, self.copies)


# %% right: a thread, and what it raised
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.thread, self.error, self.memory = write, None, None, {}

    def save(self, step, tensors):
        self.wait()
        for name, tensor in tensors.items():
            self.memory.setdefault(name, torch.empty_like(tensor)).copy_(tensor.detach())
        self.thread = threading.Thread(target=self.run, args=(step,))
        self.thread.start()

    def run(self, step):
        try:
            self.write(step, self.memory)
        except Exception as error:
            self.error = error

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise RuntimeError("the last save failed") from error


# %% right: copies are given to the write by name, on the CPU
from concurrent.futures import ThreadPoolExecutor


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.copies, self.last = write, {}, None
        self.thread = ThreadPoolExecutor(1)

    def save(self, step, tensors):
        self.wait()
        for name, tensor in tensors.items():
            if name not in self.copies or self.copies[name].shape != tensor.shape:
                self.copies[name] = torch.empty_like(tensor, device="cpu")
            self.copies[name].copy_(tensor.detach())
        copies = {name: self.copies[name] for name in tensors}
        self.last = self.thread.submit(self.write, step, copies)

    def wait(self):
        last, self.last = self.last, None
        if last is not None:
            last.result()


# %% wrong: the thread makes the copy
# is: idea
# says: Copy the tensors before `save` returns
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.thread = write, None

    def save(self, step, tensors):
        self.wait()
        self.thread = threading.Thread(
            target=lambda: self.write(step, {name: tensor.clone() for name, tensor in tensors.items()})
        )
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None


# %% wrong: write gets its arguments exchanged
# is: form
# says: `write` got .dict, int.
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.thread = write, None

    def save(self, step, tensors):
        self.wait()
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        self.thread = threading.Thread(target=self.write, args=(copies, step))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()


# %% wrong: a thread for each save, and nothing more
# is: slip
# says: Two writes ran at the same time
class AsyncCheckpoint:
    def __init__(self, write):
        self.write = write

    def save(self, step, tensors):
        import threading

        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        threading.Thread(target=self.write, args=(step, copies)).start()

    def wait(self):
        pass


# %% wrong: raises another error
# is: slip
# says: Raise the error of `write`
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.thread, self.memory, self.failed = write, None, {}, False

    def run(self, step, copies):
        try:
            self.write(step, copies)
        except Exception:
            self.failed = True

    def save(self, step, tensors):
        self.wait()
        for name, tensor in tensors.items():
            self.memory.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        self.thread = threading.Thread(target=self.run, args=(step, dict(self.memory)))
        self.thread.start()

    def wait(self):
        if self.thread:
            self.thread.join()
        if self.failed:
            self.failed = False
            raise RuntimeError("a write failed")


# %% wrong: the target is called
# is: idea
# says: returned only after its write had ended
import threading


class AsyncCheckpoint:
    def __init__(self, write):
        self.write, self.thread = write, None

    def save(self, step, tensors):
        self.wait()
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        self.thread = threading.Thread(target=self.write(step, copies))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
