package torchsave_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func read(t testing.TB, name string) (*torchsave.File, error) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{})
}

// Read reads the files that PyTorch wrote with testdata/make.py.
func TestFilesOfPyTorch(t *testing.T) {
	dev := remotetest.OpenHost(t)
	for name, want := range map[string]string{
		"float32.pt":   "tensor([[0., 1., 2.],\n        [3., 4., 5.]])",
		"view.pt":      "tensor([[ 8, 14],\n        [ 9, 15],\n        [10, 16]])",
		"bfloat16.pt":  "tensor([ 1.5000, -2.0000], dtype=torch.bfloat16)",
		"bool.pt":      "tensor([ True, False,  True])",
		"complex64.pt": "tensor([1.+2.j, 3.-4.j])",
		"scalar.pt":    "tensor(7, dtype=torch.uint8)",
		"empty.pt":     "tensor([], size=(0, 3))",
		"parameter.pt": "tensor([1., 1.])",
		"protocol4.pt": "tensor([1., 1., 1.], dtype=torch.float64)",
	} {
		t.Run(name, func(t *testing.T) {
			file, err := read(t, name)
			require.NoError(t, err)
			entry, err := file.Tensor()
			require.NoError(t, err)
			require.Equal(t, name == "parameter.pt", entry.RequiresGrad)
			got, err := file.Load(dev, entry)
			require.NoError(t, err)
			defer got.Close()
			require.Equal(t, want, got.String())
		})
	}
}

func TestStateDict(t *testing.T) {
	file, err := read(t, "state_dict.pt")
	require.NoError(t, err)
	named, err := file.Tensors()
	require.NoError(t, err)
	var names []string
	for _, n := range named {
		names = append(names, n.Name)
	}
	require.Equal(t, "0.weight 0.bias 1.weight 1.bias 1.running_mean 1.running_var 1.num_batches_tracked", strings.Join(names, " "))
}

func TestOtherValuesSkipped(t *testing.T) {
	file, err := read(t, "tied.pt")
	require.NoError(t, err)
	root := file.Root.(*torchsave.Dict)
	require.Equal(t, []any{"step", "weights", "lr", "note", "none", "big", "negative"}, root.Keys)
	require.Equal(t, int64(3), root.Values[0])
	require.Equal(t, []any{0.25, "über", nil, int64(1) << 40, int64(-300)}, root.Values[2:])
	weights := root.Values[1].(*torchsave.List)
	require.Equal(t, weights.Items[0].(*torchsave.Entry).Storage, weights.Items[1].(*torchsave.Entry).Storage)
}

// Files that make PyTorch execute a command, and files with more than tensors, are refused.
func TestNothingIsExecuted(t *testing.T) {
	const executed = "/tmp/torchsave-executed"
	require.NoFileExists(t, executed)
	for name, word := range map[string]string{
		"evil.pt": "posix.system", "evil_inside.pt": "posix.system", "module.pt": "instruction 0x81", "sparse.pt": "torch.serialization._get_layout",
	} {
		_, err := read(t, name)
		require.ErrorIs(t, err, torchsave.ErrRefused, name)
		require.ErrorContains(t, err, word)
	}
	_, err := read(t, "legacy.pt")
	require.ErrorIs(t, err, torchsave.ErrFormat)
	require.ErrorContains(t, err, "before 1.6")
	require.NoFileExists(t, executed)
}

// A valid file that is truncated or changed at any position causes an error, or yields a tensor of the right size.
func TestDamagedFiles(t *testing.T) {
	dev := remotetest.OpenHost(t)
	good, err := os.ReadFile("testdata/float32.pt")
	require.NoError(t, err)
	for i := range good {
		_, err := torchsave.Read(bytes.NewReader(good[:i]), int64(i), torchsave.Limits{})
		require.Error(t, err, "cut at %d", i)
		bad := bytes.Clone(good)
		bad[i] ^= 0x55
		check(t, dev, bad)
	}
}

// check reads data as a file, and all of its tensors.
func check(t testing.TB, dev *host.Device, data []byte) {
	file, err := torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{})
	if err != nil {
		require.Nil(t, file)
		return
	}
	named, err := file.Tensors()
	if err != nil {
		return
	}
	for _, n := range named {
		if got, err := file.Load(dev, n.Entry); err == nil {
			require.LessOrEqual(t, got.Storage().Bytes(), int64(len(data)))
			require.NoError(t, got.Close())
		}
	}
}

// pickled returns a file with a custom pickle.
func pickled(t *testing.T, code string) []byte {
	t.Helper()
	dev := remotetest.OpenHost(t)
	one, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{1})
	require.NoError(t, err)
	defer one.Close()
	return repickle(t, one, code)
}

// Pickles that exceed a limit or use missing values are refused.
func TestHostilePickles(t *testing.T) {
	deep := strings.Repeat("]", 200) + strings.Repeat("a", 199) + "."
	for name, c := range map[string]struct {
		code string
		err  error
	}{
		"empty":             {"", torchsave.ErrFormat},
		"no value":          {".", torchsave.ErrFormat},
		"unknown":           {"\x80\x02\xff.", torchsave.ErrRefused},
		"new protocol":      {"\x80\x09N.", torchsave.ErrFormat},
		"eval":              {"c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", torchsave.ErrRefused},
		"instance":          {"(i__builtin__\neval\n.", torchsave.ErrRefused},
		"stacked global":    {"\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", torchsave.ErrRefused},
		"callable tensor":   {"N)R.", torchsave.ErrRefused},
		"memo":              {"h\x07.", torchsave.ErrFormat},
		"list in itself":    {"]q\x00h\x00a.", torchsave.ErrRefused},
		"list twice":        {"]q\x00](h\x00h\x00e.", torchsave.ErrRefused},
		"deep":              {deep, torchsave.ErrLimit},
		"too many values":   {strings.Repeat("(", 2<<20), torchsave.ErrLimit},
		"in a list":         {"](" + strings.Repeat("N", 1<<19) + "e(" + strings.Repeat("N", 1<<19) + "e.", torchsave.ErrLimit},
		"in a tuple":        {"(" + strings.Repeat("N", 1<<19) + "t(" + strings.Repeat("N", 1<<19) + "t.", torchsave.ErrLimit},
		"in a dictionary":   {"}(" + strings.Repeat("NN", 1<<18) + "u(" + strings.Repeat("NN", 1<<18) + "u.", torchsave.ErrLimit},
		"one by one":        {"]" + strings.Repeat("]a", 1<<20) + ".", torchsave.ErrLimit},
		"below the mark":    {"N(\x85.", torchsave.ErrFormat},
		"string too long":   {"X\xff\xff\xff\xffa.", torchsave.ErrFormat},
		"storage elsewhere": {"X\x04\x00\x00\x00fileQ.", torchsave.ErrRefused},
	} {
		data := pickled(t, c.code)
		_, err := torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{})
		require.ErrorIs(t, err, c.err, name)
	}
}

// The total size of tensor names below one long key is limited, because each name contains the key.
func TestLongNamesAreBounded(t *testing.T) {
	key := func(text string) string {
		return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(text)))) + text
	}
	storage := "(" + key("storage") + "ctorch\nFloatStorage\n" + key("0") + key("cpu") + "K\x01tQ"
	entry := "ctorch._utils\n_rebuild_tensor\n(" + storage + "K\x00K\x01\x85K\x01\x85tRq\x07"
	code := "}" + key(strings.Repeat("k", 1<<20)) + "](" + entry + strings.Repeat("h\x07", 100) + "es."
	data := pickled(t, code)
	file, err := torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{})
	require.NoError(t, err)
	_, err = file.Tensors()
	require.ErrorIs(t, err, torchsave.ErrLimit)
}

// A state dict of 80,000 tensors is within the limits.
func TestManyTensorsAreWithinTheLimits(t *testing.T) {
	var code strings.Builder
	code.WriteString("\x80\x02}q\x00(")
	memo := uint32(1)
	put := func() {
		code.WriteString("r" + string(binary.LittleEndian.AppendUint32(nil, memo)))
		memo++
	}
	text := func(s string) {
		code.WriteString("X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s)
		put()
	}
	for i := range 80_000 { // in PyTorch's format, with each value in the memo
		text(fmt.Sprint("l", i))
		code.WriteString("ctorch._utils\n_rebuild_tensor_v2\n((")
		text("storage")
		code.WriteString("ctorch\nFloatStorage\n")
		text("0")
		text("cpu")
		code.WriteString("K\x01t")
		put()
		code.WriteString("QK\x00K\x01\x85")
		put()
		code.WriteString("K\x01\x85")
		put()
		code.WriteString("\x89ccollections\nOrderedDict\n)Rt")
		put()
		code.WriteString("R")
		put()
	}
	code.WriteString("u.")
	data := pickled(t, code.String())
	file, err := torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{PickleBytes: 64 << 20})
	require.NoError(t, err)
	named, err := file.Tensors()
	require.NoError(t, err)
	require.Len(t, named, 80_000)
}

// An archive with too many entries is refused.
func TestDirectoryIsBounded(t *testing.T) {
	data := manyEntries(t, 5000)
	_, err := torchsave.Read(bytes.NewReader(data), int64(len(data)), torchsave.Limits{DirectoryBytes: 1000})
	require.ErrorIs(t, err, torchsave.ErrLimit)
}

// Tensors of every type are unchanged after writing and reading.
func TestRoundTrip(t *testing.T) {
	dev := remotetest.OpenHost(t)
	for _, dtype := range tensor.DTypes() {
		want, err := tensor.Zeros(dev, dtype, tensor.Shape{3, 700})
		require.NoError(t, err)
		defer want.Close()
		raw, err := tensor.RawData(want)
		require.NoError(t, err)
		for i := range raw {
			raw[i] = byte(i % 251)
		}
		encoded, err := torchsave.Encode(want)
		if dtype.BitSize()%8 != 0 {
			require.ErrorIs(t, err, tensor.ErrDType)
			continue
		}
		require.NoError(t, err)
		require.Zero(t, len(encoded.Head)%64, "the elements are aligned")
		var file bytes.Buffer
		n, err := encoded.WriteTo(&file)
		require.NoError(t, err)
		require.Equal(t, encoded.Size(), n)
		back, err := torchsave.Read(bytes.NewReader(file.Bytes()), n, torchsave.Limits{})
		require.NoError(t, err)
		entry, err := back.Tensor()
		require.NoError(t, err)
		got, err := back.Load(dev, entry)
		require.NoError(t, err)
		defer got.Close()
		equal, err := want.Equal(got)
		require.NoError(t, err)
		require.True(t, equal, "%s", dtype)
	}
}

// PyTorch can load written files with its weights-only reader.
func TestPyTorchReadsWrittenFiles(t *testing.T) {
	python := pytest.Python(t, "torch")
	dev := remotetest.OpenHost(t)
	dir := t.TempDir()
	for _, dtype := range []tensor.DType{
		tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Float16, tensor.BFloat16, tensor.Float32,
		tensor.Float64, tensor.Complex64, tensor.Complex128,
	} {
		x, err := tensor.Zeros(dev, dtype, tensor.Shape{2, 3})
		require.NoError(t, err)
		defer x.Close()
		file, err := os.Create(filepath.Join(dir, dtype.String()+".pt"))
		require.NoError(t, err)
		encoded, err := torchsave.Encode(x)
		require.NoError(t, err)
		_, err = encoded.WriteTo(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	script := `
import pathlib, sys, torch
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    x = torch.load(path, weights_only=True)
    assert x.shape == (2, 3) and str(x.dtype) == "torch." + path.stem and bool((x == 0).all()), (path, x)
    print(path.stem)
`
	out, err := exec.Command(python, "-c", script, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Len(t, strings.Fields(string(out)), 12)
}

// Read returns an error or tensors within the file for any input.
func FuzzRead(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.pt")
	require.NoError(f, err)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(data)
	}
	dev := remotetest.OpenHost(f)
	f.Fuzz(func(t *testing.T, data []byte) { check(t, dev, data) })
}
