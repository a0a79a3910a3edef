//go:build linux

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The processes of the demo run this test binary with workerEnv set. The value "lie ROLE" or "crash ROLE" makes one of
// them misbehave.
const workerEnv = "DEMO_TEST_WORKER"

func TestMain(m *testing.M) {
	if how, ok := os.LookupEnv(workerEnv); ok {
		os.Exit(workAs(how, os.Args[len(os.Args)-2], os.Args[len(os.Args)-1]))
	}
	os.Exit(m.Run())
}

// workAs is the main function of a demo process.
func workAs(how, role, dir string) int {
	var out io.Writer = os.Stdout
	switch how {
	case "lie " + role:
		out = liar{out}
	case "crash " + role:
		fmt.Fprintln(os.Stderr, "no reason at all")
		return 3
	}
	if err := Work(context.Background(), os.Stdin, out, role, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// liar changes the sums that are written through it.
type liar struct{ w io.Writer }

var checksum = regexp.MustCompile(`"Sum":"[0-9a-f]+"`)

func (l liar) Write(p []byte) (int, error) {
	_, err := l.w.Write(checksum.ReplaceAll(p, []byte(`"Sum":"01234567"`)))
	return len(p), err
}

// run runs the demo in a new directory, which must be empty afterwards. at is called for each line with its first word.
func run(t *testing.T, ctx context.Context, how, path string, at func(line string)) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "st-") // not t.TempDir, whose path is too long for a socket
	require.NoError(t, err)
	t.Setenv("TMPDIR", dir)
	t.Setenv(workerEnv, how)
	t.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0") // the race detector delays each exit by a second otherwise
	exe, err := os.Executable()
	require.NoError(t, err)
	out := &lines{at: at}
	runErr := Run(ctx, Options{Path: path, Size: 1 << 18, Worker: []string{exe}, Out: out})
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, os.Remove(dir))
	children, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, path := range children {
		list, _ := os.ReadFile(path) // a thread may have ended in the meantime
		require.Empty(t, list, "processes are left")
	}
	return out.String(), runErr
}

// lines collects output and calls at for each line.
type lines struct {
	bytes.Buffer
	at func(line string)
}

func (l *lines) Write(p []byte) (int, error) {
	if l.at != nil {
		l.at(string(p))
	}
	return l.Buffer.Write(p)
}

func TestRunDetectsDisagreement(t *testing.T) {
	for _, role := range []string{"client-2", "publisher", "client-1"} {
		t.Run(role, func(t *testing.T) {
			_, err := run(t, context.Background(), "lie "+role, "", nil)
			require.ErrorIs(t, err, ErrDisagree)
		})
	}
}

func TestRunNamesCrashedProcess(t *testing.T) {
	for _, role := range []string{"owner", "client-1", "publisher", "new-owner", "last-owner"} {
		t.Run(role, func(t *testing.T) {
			_, err := run(t, context.Background(), "crash "+role, "", nil)
			require.ErrorContains(t, err, strings.ReplaceAll(role, "-", " ")+", pid ")
			require.ErrorContains(t, err, "exit status 3")
			require.ErrorContains(t, err, "no reason at all")
		})
	}
}

func TestRunInterruptedAtEachStep(t *testing.T) {
	errStop := errors.New("enough")
	for _, step := range []string{"owner,", "client 2,", "one copy", "killed client", "publisher,", "both versions", "killed the owner", "new owner", "killed the owner (SIGKILL): no client", "last owner"} {
		t.Run(step, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			_, err := run(t, ctx, "", "", func(line string) {
				if strings.HasPrefix(line, step) {
					cancel(errStop)
				}
			})
			require.ErrorIs(t, err, errStop)
		})
	}
}

// The demo runs on models of any dtype, and on a model without tensors.
func TestRunModels(t *testing.T) {
	for name, infos := range map[string][]safetensors.TensorInfo{
		"mixed": {
			{Name: "flags", DType: tensor.Bool, Shape: tensor.Shape{70000}},
			{Name: "half", DType: tensor.BFloat16, Shape: tensor.Shape{100, 33}},
			{Name: "none", DType: tensor.Float32, Shape: tensor.Shape{0, 4}},
			{Name: "scale", DType: tensor.Float8E4M3FN, Shape: tensor.Shape{}},
		},
		"empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			h, err := safetensors.NewHeader(infos, nil)
			require.NoError(t, err)
			require.NoError(t, safetensors.WriteFile(path, h, func(w io.Writer, info safetensors.TensorInfo) error {
				_, err := w.Write(bytes.Repeat([]byte{1}, int(info.Bytes())))
				return err
			}))
			text, err := run(t, context.Background(), "", path, nil)
			require.NoError(t, err)
			first := regexp.MustCompile(`same bytes: (\w+)`).FindStringSubmatch(text)
			second := regexp.MustCompile(`version 2 in \S+: (\w+)`).FindStringSubmatch(text)
			require.Len(t, first, 2, text)
			require.Len(t, second, 2, text)
			require.Equal(t, name == "empty", first[1] == second[1])
		})
	}
}

const smapsText = `00400000-0048a000 r-xp 00000000 fd:03 960637                             /bin/some program
Size:                552 kB
Pss:                 100 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0004000000 r--s 00000000 00:01 1057                       /memfd:sharedtensor (deleted)
Rss:               65536 kB
Pss:               16384 kB
Private_Clean:         7 kB
7f0004000000-7f0008000000 rw-s 00000000 00:01 1057                       /memfd:sharedtensor (deleted)
Pss:                   1 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Pss:                 128 kB
`

func TestParseSmaps(t *testing.T) {
	t.Parallel()
	objects := map[string]bool{}
	pss, err := parseSmaps(strings.NewReader(smapsText), objects)
	require.NoError(t, err)
	require.EqualValues(t, 16385<<10, pss)
	require.Equal(t, map[string]bool{"00:01:1057": true}, objects)

	const mapping = "7f0000000000-7f0004000000 r--s 00000000 00:01 1057 /memfd:sharedtensor (deleted)\n"
	for name, text := range map[string]string{
		"nothing":   "",
		"no shares": "00400000-0048a000 r-xp 00000000 fd:03 960637 /bin/x\nRss: 4 kB\n",
		"no unit":   mapping + "Pss: 12\n",
		"negative":  mapping + "Pss: -12 kB\n",
		"too large": mapping + "Pss: 4398046511104000 kB\n",
		"long line": strings.Repeat("x", 2<<20),
	} {
		_, err := parseSmaps(strings.NewReader(text), objects)
		require.Error(t, err, name)
	}
}
