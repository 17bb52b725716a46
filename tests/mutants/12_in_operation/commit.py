# %% base: a manifest and a rename
import json


def commit(disk, step, parts):
    files = {}
    attempt = 0
    while any(name.startswith(f"{step}.{attempt}.") for name in disk.names()):
        attempt += 1
    for name, data in parts.items():
        files[name] = f"{step}.{attempt}.{name}"
        disk.write(files[name], data)
        disk.sync(files[name])
    disk.sync_folder()
    disk.write("draft", json.dumps(files).encode())
    disk.sync("draft")
    disk.rename("draft", f"step-{step}")
    disk.sync_folder()


def newest(disk):
    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
    if not steps:
        return None
    files = json.loads(disk.read(f"step-{max(steps)}"))
    return max(steps), {name: disk.read(file) for name, file in files.items()}


# %% wrong: the manifest first
# is: idea
# says: existed before the checkpoint was complete
# base: a manifest and a rename
-        files[name] = f"{step}.{attempt}.{name}"
-        disk.write(files[name], data)
-        disk.sync(files[name])
-    disk.sync_folder()
+        files[name] = f"{step}.{attempt}.{name}"
@@
-    disk.sync_folder()
-
+    for name, data in parts.items():
+        disk.write(files[name], data)
+        disk.sync(files[name])
+    disk.sync_folder()
+


# %% wrong: the manifest without a rename
# is: idea
# says: existed before the checkpoint was complete
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
+    disk.write(f"step-{step}", json.dumps(files).encode())
+    disk.sync(f"step-{step}")


# %% wrong: in place, over the old checkpoint
# is: idea
# says: overwritten in place
import json


def commit(disk, step, parts):
    for name, data in parts.items():
        disk.write(name, data)
        disk.sync(name)
    disk.write("manifest", json.dumps([step, list(parts)]).encode())
    disk.sync("manifest")
    disk.sync_folder()


def newest(disk):
    if "manifest" not in disk.names():
        return None
    step, names = json.loads(disk.read("manifest"))
    return step, {name: disk.read(name) for name in names}


# %% wrong: one file, in place
# is: idea
# says: overwritten in place
import pickle


def commit(disk, step, parts):
    disk.write("checkpoint", pickle.dumps((step, parts)))
    disk.sync("checkpoint")
    disk.sync_folder()


def newest(disk):
    return pickle.loads(disk.read("checkpoint")) if "checkpoint" in disk.names() else None


# %% wrong: a pointer that is written over
# is: idea
# says: overwritten in place
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
+    disk.write("draft", json.dumps(files).encode())
+    disk.sync("draft")
+    disk.rename("draft", f"manifest-{step}")
+    disk.write("latest", str(step).encode())
+    disk.sync("latest")
@@
-    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
-    if not steps:
-        return None
-    files = json.loads(disk.read(f"step-{max(steps)}"))
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    if "latest" not in disk.names():
+        return None
+    step = int(disk.read("latest"))
+    files = json.loads(disk.read(f"manifest-{step}"))
+    return step, {name: disk.read(file) for name, file in files.items()}


# %% wrong: the old checkpoint is removed first
# is: idea
# says: was gone before the new checkpoint
# base: a manifest and a rename
-    files = {}
-    attempt = 0
+    for name in disk.names():
+        disk.remove(name)
+    files = {}
+    attempt = 0


# %% wrong: the newest by its parts' names
# is: idea
# says: existed before the checkpoint was complete
def commit(disk, step, parts):
    for name, data in parts.items():
        file = f"{step}.{name}"
        disk.write("draft", data)
        disk.sync("draft")
        disk.rename("draft", file)
    disk.sync_folder()


def newest(disk):
    files = [name.split(".", 1) for name in disk.names() if "." in name]
    if not files:
        return None
    step = max(int(number) for number, _ in files)
    return step, {name: disk.read(f"{step}.{name}") for number, name in files if int(number) == step}


# %% wrong: nothing is synced
# is: idea
# says: sync each file before the rename
# base: a manifest and a rename
-        disk.sync(files[name])
-    disk.sync_folder()
@@
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")


# %% wrong: the draft is not synced
# is: slip
# says: sync each file before the rename
# base: a manifest and a rename
-    disk.sync("draft")


# %% wrong: the parts are not synced
# is: slip
# says: sync each file before the rename
# base: a manifest and a rename
-        disk.sync(files[name])


# %% wrong: synced after the rename
# is: idea
# says: sync each file before the rename
# base: a manifest and a rename
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
+    disk.rename("draft", f"step-{step}")
+    disk.sync(f"step-{step}")


# %% wrong: one file, renamed before it is synced
# is: idea
# says: sync each file before the rename
import pickle


def commit(disk, step, parts):
    disk.write("draft", pickle.dumps((step, parts)))
    disk.rename("draft", "checkpoint")
    disk.sync("checkpoint")
    disk.sync_folder()


def newest(disk):
    return pickle.loads(disk.read("checkpoint")) if "checkpoint" in disk.names() else None


# %% wrong: the folder alone is synced
# is: idea
# says: sync each file before the rename
# base: a manifest and a rename
-        disk.sync(files[name])
@@
-    disk.sync("draft")


# %% wrong: the parts are synced at the end
# is: idea
# says: sync each file before the rename
# base: a manifest and a rename
-        disk.sync(files[name])
@@
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")
+    for file in files.values():
+        disk.sync(file)
+    disk.sync_folder()


# %% wrong: the folder is not synced at the end
# is: slip
# says: The names in a folder have to be synced as well
# base: a manifest and a rename
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")


# %% wrong: what an interrupted save left is loaded
# is: slip
# says: must not disturb the next save
def commit(disk, step, parts):
    for name, data in parts.items():
        disk.write(f"{step}.{name}", data)
        disk.sync(f"{step}.{name}")
    disk.write("draft", b"")
    disk.rename("draft", f"step-{step}")
    disk.sync_folder()


def newest(disk):
    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
    if not steps:
        return None
    start = f"{max(steps)}."
    files = [name for name in disk.names() if name.startswith(start)]
    return max(steps), {name.removeprefix(start): disk.read(name) for name in files}


# %% wrong: steps are compared as text
# is: slip
# says: as text '9' comes after '10'
# base: a manifest and a rename
-    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
+    steps = [name.removeprefix("step-") for name in disk.names() if name.startswith("step-")]
@@
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    return int(max(steps)), {name: disk.read(file) for name, file in files.items()}


# %% wrong: an empty disk is an error
# is: slip
# says: On a disk without a checkpoint
# base: a manifest and a rename
-    if not steps:
-        return None


# %% wrong: a step that is there is not saved again
# is: slip
# says: A later save of the same step
# base: a manifest and a rename
-    files = {}
-    attempt = 0
+    if f"step-{step}" in disk.names():
+        return
+    files = {}
+    attempt = 0


# %% wrong: the parts alone are returned
# is: form
# says: newest returns .step, parts.
# base: a manifest and a rename
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    return {name: disk.read(file) for name, file in files.items()}


# %% wrong: synced before it is written
# is: slip
# says: sync each file before the rename
# base: a manifest and a rename
-        disk.write(files[name], data)
-        disk.sync(files[name])
+        if files[name] in disk.names():
+            disk.sync(files[name])
+        disk.write(files[name], data)


# %% wrong: the folder is synced before the rename alone
# is: slip
# says: The names in a folder have to be synced as well
# base: a manifest and a rename
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")


# %% wrong: the old parts are removed before the rename
# is: idea
# says: was gone before the new checkpoint
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
+    for name in disk.names():
+        if not name.startswith("step-") and name not in files.values():
+            disk.remove(name)
+    disk.write("draft", json.dumps(files).encode())


# %% wrong: all drafts on the disk are taken in
# is: slip
# says: must not disturb the next save
import json


def commit(disk, step, parts):
    for name, data in parts.items():
        disk.write(f"draft.{name}", data)
        disk.sync(f"draft.{name}")
    drafts = [name for name in disk.names() if name.startswith("draft.")]
    whole = {name.removeprefix("draft."): disk.read(name).hex() for name in drafts}
    disk.write("whole", json.dumps(whole).encode())
    disk.sync("whole")
    disk.rename("whole", f"step-{step}")
    disk.sync_folder()
    for name in drafts:
        disk.remove(name)


def newest(disk):
    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
    if not steps:
        return None
    whole = json.loads(disk.read(f"step-{max(steps)}"))
    return max(steps), {name: bytes.fromhex(data) for name, data in whole.items()}


# %% wrong: newest returns nothing
# is: form
# says: Does it end in a `return`
# base: a manifest and a rename
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    max(steps), {name: disk.read(file) for name, file in files.items()}


# %% wrong: commit does nothing
# is: idea
# says: commit wrote nothing to `disk`
# base: a manifest and a rename
-    files = {}
-    attempt = 0
-    while any(name.startswith(f"{step}.{attempt}.") for name in disk.names()):
-        attempt += 1
-    for name, data in parts.items():
-        files[name] = f"{step}.{attempt}.{name}"
-        disk.write(files[name], data)
-        disk.sync(files[name])
-    disk.sync_folder()
-    disk.write("draft", json.dumps(files).encode())
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    pass


# %% wrong: an operation the disk does not have
# is: form
# says: 'Disk' object has no attribute 'fsync'
# base: a manifest and a rename
-        disk.sync(files[name])
+        disk.fsync(files[name])


# %% right: one file, a draft and a rename
import pickle


def commit(disk, step, parts):
    disk.write("draft", pickle.dumps(parts))
    disk.sync("draft")
    disk.rename("draft", f"step-{step}")
    disk.sync_folder()


def newest(disk):
    steps = [int(name[5:]) for name in disk.names() if name.startswith("step-")]
    return (max(steps), pickle.loads(disk.read(f"step-{max(steps)}"))) if steps else None


# %% right: checksums, no rename, and the old ones go at last
import pickle
import zlib


def commit(disk, step, parts):
    there = disk.names()
    number = max((int(name) for name in there), default=0) + 1
    data = pickle.dumps((step, parts))
    disk.write(str(number), zlib.crc32(data).to_bytes(4, "big") + data)
    disk.sync(str(number))
    disk.sync_folder()
    for name in there:
        disk.remove(name)


def newest(disk):
    for name in sorted(disk.names(), key=int, reverse=True):
        data = disk.read(name)
        if len(data) > 4 and zlib.crc32(data[4:]).to_bytes(4, "big") == data[:4]:
            return pickle.loads(data[4:])
    return None


# %% right: a count in the names, and a rename
import json


def commit(disk, step, parts):
    for name in disk.names():
        if name.startswith("draft"):
            disk.remove(name)
    for name, data in parts.items():
        disk.write(f"draft.{name}", data)
        disk.sync(f"draft.{name}")
    save = sum(name.startswith("manifest.") for name in disk.names())
    for name in parts:
        disk.rename(f"draft.{name}", f"part.{save}.{name}")
    disk.write("draft", json.dumps({"step": step, "parts": list(parts)}).encode())
    disk.sync("draft")
    disk.rename("draft", f"manifest.{save}")
    disk.sync_folder()


def newest(disk):
    saves = [int(name.removeprefix("manifest.")) for name in disk.names() if name.startswith("manifest.")]
    if not saves:
        return None
    found = json.loads(disk.read(f"manifest.{max(saves)}"))
    return found["step"], {name: disk.read(f"part.{max(saves)}.{name}") for name in found["parts"]}


# %% wrong: saves stay in memory
# is: idea
# says: never saved on this disk
saved = {}


def commit(disk, step, parts):
    saved[step] = dict(parts)


def newest(disk):
    if not saved:
        return None
    return max(saved), saved[max(saved)]


# %% wrong: each part is renamed over the old one
# is: idea
# says: existed before the checkpoint was complete
import json


def commit(disk, step, parts):
    for name, data in parts.items():
        disk.write("draft-" + name, data)
        disk.sync("draft-" + name)
    for name in parts:
        disk.rename("draft-" + name, name)
    disk.write("draft", json.dumps({"step": step, "names": list(parts)}).encode())
    disk.sync("draft")
    disk.rename("draft", "manifest")
    disk.sync_folder()


def newest(disk):
    if "manifest" not in disk.names():
        return None
    found = json.loads(disk.read("manifest"))
    return found["step"], {name: disk.read(name) for name in found["names"]}


# %% wrong: newest stumbles over a draft
# is: idea
# says: reads a draft, so the rename decides nothing
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
+    disk.write(f"step-{step}.draft", json.dumps(files).encode())
+    disk.sync(f"step-{step}.draft")
+    disk.rename(f"step-{step}.draft", f"step-{step}")


# %% wrong: newest takes a draft for a checkpoint
# is: idea
# says: reads a draft, so the rename decides nothing
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
-    disk.sync("draft")
-    disk.rename("draft", f"step-{step}")
+    disk.write(f"step-{step}.draft", json.dumps(files).encode())
+    disk.sync(f"step-{step}.draft")
+    disk.rename(f"step-{step}.draft", f"step-{step}")
@@
-    steps = [int(name.removeprefix("step-")) for name in disk.names() if name.startswith("step-")]
-    if not steps:
-        return None
-    files = json.loads(disk.read(f"step-{max(steps)}"))
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    manifests = [name for name in disk.names() if name.startswith("step-")]
+    if not manifests:
+        return None
+    best = max(manifests, key=lambda name: int(name[5:].split(".")[0]))
+    files = json.loads(disk.read(best))
+    return int(best[5:].split(".")[0]), {name: disk.read(file) for name, file in files.items()}


# %% wrong: a prefix without the attempt
# is: slip
# says: overwritten in place
# base: a manifest and a rename
-    while any(name.startswith(f"{step}.{attempt}.") for name in disk.names()):
-        attempt += 1


# %% wrong: split at the slash
# is: slip
# says: without 'pp0/tp1'
# base: a manifest and a rename
-        files[name] = f"{step}.{attempt}.{name}"
+        files[name] = f"{step}.{attempt}.{name.split('/')[-1]}"
@@
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    return max(steps), {name.split("/")[-1]: disk.read(file) for name, file in files.items()}


# %% wrong: bytes as JSON
# is: form
# says: not JSON serializable
# base: a manifest and a rename
-    disk.write("draft", json.dumps(files).encode())
+    disk.write("draft", json.dumps(parts).encode())


# %% wrong: the step as text is returned
# is: form
# says: newest returns .step, parts.
# base: a manifest and a rename
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    return str(max(steps)), {name: disk.read(file) for name, file in files.items()}


# %% wrong: an empty part is left out
# is: detail
# says: without 'empty'
# base: a manifest and a rename
-    return max(steps), {name: disk.read(file) for name, file in files.items()}
+    return max(steps), {name: disk.read(file) for name, file in files.items() if disk.read(file)}


# %% right: older ones are removed after the folder's sync
# base: a manifest and a rename
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")
+    disk.sync_folder()
+    for name in disk.names():
+        if name != f"step-{step}" and name not in files.values():
+            disk.remove(name)
+    disk.sync_folder()


# %% right: older ones are removed after the rename
# base: a manifest and a rename
-    disk.rename("draft", f"step-{step}")
-    disk.sync_folder()
+    disk.rename("draft", f"step-{step}")
+    for name in disk.names():
+        if name != f"step-{step}" and name not in files.values():
+            disk.remove(name)
+    disk.sync_folder()
