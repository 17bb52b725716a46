# %% wrong: combine sends the row, too
# is: idea
# says: the rank's column decides how many results it sends
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 4 * goes * width * itemsize


# %% wrong: the column alone
# is: idea
# says: It also sends its own rows
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 4 * comes * width * itemsize


# %% wrong: a uniform router
# is: idea
# says: for a uniform router
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 4 * (n - 1) / n * sum(counts[rank]) * width * itemsize


# %% wrong: the mean over the ranks
# is: idea
# says: for a uniform router
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 4 * (n - 1) / n * sum(map(sum, counts)) / n * width * itemsize


# %% wrong: forward alone
# is: slip
# says: Backward sends as many rows again
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return (goes + comes) * width * itemsize


# %% wrong: dispatch alone
# is: slip
# says: But combine sends the results of the rows that came
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 2 * goes * width * itemsize


# %% wrong: one all-to-all
# is: slip
# says: backward sends both again
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return goes * width * itemsize


# %% wrong: backward counts twice
# is: slip
# says: and not twice as many
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 3 * (goes + comes) * width * itemsize


# %% wrong: the own part is sent
# is: slip
# says: leave out the diagonal
# base: from the matrix of rows
-    own = matrix[rank][rank]
+    own = 0


# %% wrong: all rows of the rank
# is: idea
# says: results for the rows that came, which are its column
def all_to_all_bytes(counts, rank, width, itemsize=2):
    return 4 * sum(counts[rank]) * width * itemsize


# %% wrong: the own part is left out once
# is: slip
# says: in its row and in its column
# base: from the matrix of rows
-    comes = sum(row[rank] for row in matrix) - own
+    comes = sum(row[rank] for row in matrix)


# %% wrong: all ranks together
# is: slip
# says: One rank's bytes are asked for
# base: from the matrix of rows
-    own = matrix[rank][rank]
-    goes = sum(matrix[rank]) - own
-    comes = sum(row[rank] for row in matrix) - own
-    return 2 * (goes + comes) * width * itemsize
+    sent = sum(map(sum, matrix)) - sum(matrix[r][r] for r in range(n))
+    return 4 * sent * width * itemsize


# %% wrong: the counts are included
# is: slip
# says: because only rows are asked for
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 2 * (goes + comes) * width * itemsize + 8 * held * (n - 1)


# %% wrong: every n-th expert
# is: slip
# says: in succession, and not every n-th
# base: from the matrix of rows
-    matrix = [[sum(row[r * held : (r + 1) * held]) for r in range(n)] for row in counts]
+    matrix = [[sum(row[r::n]) for r in range(n)] for row in counts]


# %% wrong: an expert for each rank
# is: slip
# says: add up the rows for all of them
# base: from the matrix of rows
-    matrix = [[sum(row[r * held : (r + 1) * held]) for r in range(n)] for row in counts]
+    matrix = counts


# %% wrong: always two bytes
# is: detail
# says: and not always two
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 4 * (goes + comes) * width


# %% wrong: elements
# is: slip
# says: has itemsize bytes
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 2 * (goes + comes) * width


# %% wrong: rows without their width
# is: slip
# says: A row has `width` numbers
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    return 2 * (goes + comes) * itemsize


# %% wrong: nothing is returned
# is: form
# says: is there a `return`
# base: from the matrix of rows
-    return 2 * (goes + comes) * width * itemsize
+    2 * (goes + comes) * width * itemsize


# %% wrong: sent and received
# is: slip
# says: Rows that come to the rank are counted as well
def all_to_all_bytes(counts, rank, width, itemsize=2):
    n, held = len(counts), len(counts[0]) // len(counts)
    between = [[sum(row[held * to : held * (to + 1)]) for to in range(n)] for row in counts]
    goes = sum(between[rank]) - between[rank][rank]
    comes = sum(row[rank] for row in between) - between[rank][rank]
    return (2 * (goes + comes) + 2 * (comes + goes)) * width * itemsize


# %% wrong: all counts are included
# is: slip
# says: Do not include the counts themselves, because only
def all_to_all_bytes(counts, rank, width, itemsize=2):
    n, held = len(counts), len(counts[0]) // len(counts)
    between = [[sum(row[held * to : held * (to + 1)]) for to in range(n)] for row in counts]
    goes = sum(between[rank]) - between[rank][rank]
    comes = sum(row[rank] for row in between) - between[rank][rank]
    return 2 * (goes + comes) * width * itemsize + 8 * len(counts[0])


# %% right: from the matrix of rows
def all_to_all_bytes(counts, rank, width, itemsize=2):
    n, held = len(counts), len(counts[0]) // len(counts)
    matrix = [[sum(row[r * held : (r + 1) * held]) for r in range(n)] for row in counts]
    own = matrix[rank][rank]
    goes = sum(matrix[rank]) - own
    comes = sum(row[rank] for row in matrix) - own
    return 2 * (goes + comes) * width * itemsize


# %% right: pair by pair
def all_to_all_bytes(counts, rank, width, itemsize=2):
    n = len(counts)
    held = len(counts[0]) // n
    rows = 0
    for source in range(n):
        for expert, number in enumerate(counts[source]):
            target = expert // held
            if source != target and rank in (source, target):
                rows += number
    return rows * width * itemsize * 2


# %% right: with a tensor
def all_to_all_bytes(counts, rank, width, itemsize=2):
    matrix = torch.tensor(counts).view(len(counts), len(counts), -1).sum(2)
    matrix.fill_diagonal_(0)
    return 2 * (matrix[rank].sum() + matrix[:, rank].sum()) * width * itemsize
