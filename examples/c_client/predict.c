/* Answers rows with a served version through TensorFlow's C API, without Python.
 *
 *   predict VERSION INPUT OUTPUT ROWS
 *
 * VERSION is the folder of a version. INPUT and OUTPUT are the names of tensors, such as "examples:0", which
 * `saved_model_cli show --dir VERSION --tag_set serve --signature_def serving_default` prints. ROWS is a TFRecord file
 * of serialized tf.Examples, which are answered in one batch. A line of the answer has the numbers of one row, with
 * digits enough to read the same float32 back. README.md beside this file has the command that compiles it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

static void fail(const char *what, const char *why) {
  fprintf(stderr, "predict: %s: %s\n", what, why);
  exit(1);
}

static void require_ok(const char *what, const TF_Status *status) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
}

/* Reads the next record into `*row`; returns 0 at the end of the file. The checksums are skipped. */
static int next_record(FILE *file, const char *path, char **row, uint64_t *size) {
  unsigned char head[12], tail[4]; /* the length in 8 bytes, little-endian, and 4 bytes of checksum */
  size_t found = fread(head, 1, sizeof head, file);
  if (found == 0 && feof(file)) return 0;
  if (found != sizeof head) fail(path, "a record is cut: give a TFRecord file without compression");
  *size = 0;
  for (int byte = 7; byte >= 0; byte--) *size = *size << 8 | head[byte];
  *row = *size < SIZE_MAX / 2 ? malloc(*size + 1) : NULL;
  if (*row == NULL) fail(path, "a record has no such length: give a TFRecord file without compression");
  if (fread(*row, 1, *size, file) != *size || fread(tail, 1, sizeof tail, file) != sizeof tail)
    fail(path, "a record is cut: give a TFRecord file without compression");
  return 1;
}

/* Reads all records of the file into a vector of strings. */
static TF_Tensor *read_rows(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail(path, "cannot be opened");
  char **rows = NULL, *row;
  uint64_t *sizes = NULL, size;
  int64_t count = 0;
  while (next_record(file, path, &row, &size)) {
    rows = realloc(rows, (count + 1) * sizeof *rows);
    sizes = realloc(sizes, (count + 1) * sizeof *sizes);
    if (rows == NULL || sizes == NULL) fail(path, "too many rows for the memory");
    rows[count] = row;
    sizes[count++] = size;
  }
  fclose(file);
  TF_Tensor *tensor = TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof(TF_TString));
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t place = 0; place < count; place++) {
    TF_StringInit(&strings[place]);
    TF_StringCopy(&strings[place], rows[place], sizes[place]);
    free(rows[place]);
  }
  free(rows);
  free(sizes);
  return tensor;
}

/* Finds the tensor "name:number" in the graph. */
static TF_Output tensor_named(TF_Graph *graph, const char *text) {
  const char *colon = strrchr(text, ':');
  char *end, *name = strdup(text);
  if (colon == NULL || colon[1] == '\0') fail(text, "is not the name of a tensor, such as examples:0");
  name[colon - text] = '\0';
  TF_Output found = {TF_GraphOperationByName(graph, name), (int)strtol(colon + 1, &end, 10)};
  if (found.oper == NULL || *end != '\0' || found.index < 0 || found.index >= TF_OperationNumOutputs(found.oper))
    fail(text, "is not in this version's graph: saved_model_cli prints the names");
  free(name);
  return found;
}

/* Prints a line for each row. */
static void print_rows(const char *name, const TF_Tensor *tensor) {
  if (TF_TensorType(tensor) != TF_FLOAT || TF_NumDims(tensor) < 1) fail(name, "is not a float32 value for each row");
  int64_t rows = TF_Dim(tensor, 0), width = rows ? TF_TensorElementCount(tensor) / rows : 0;
  const float *values = TF_TensorData(tensor);
  for (int64_t row = 0; row < rows; row++)
    for (int64_t place = 0; place < width; place++)
      printf("%.9g%c", values[row * width + place], place + 1 < width ? ' ' : '\n');
}

int main(int count, char **arguments) {
  if (count != 5) fail("usage", "predict VERSION INPUT OUTPUT ROWS");
  const char *tags[] = {"serve"};
  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Session *session =
      TF_LoadSessionFromSavedModel(options, NULL, arguments[1], tags, 1, graph, NULL, status);
  require_ok(arguments[1], status);

  TF_Output input = tensor_named(graph, arguments[2]), output = tensor_named(graph, arguments[3]);
  TF_Tensor *rows = read_rows(arguments[4]), *answer = NULL;
  TF_SessionRun(session, NULL, &input, &rows, 1, &output, &answer, 1, NULL, 0, NULL, status);
  require_ok(arguments[4], status);
  print_rows(arguments[3], answer);

  TF_DeleteTensor(rows);
  TF_DeleteTensor(answer);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
