package gguf_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module/gguf"
	"github.com/sharedtensor/sharedtensor/tensor"
)

var update = flag.Bool("update", false, "write testdata/digests.json with ggml's C code")

// halves holds the offsets in a block of the scales that are IEEE binary16.
var halves = map[tensor.DType][]int{
	tensor.Q1_0: {0}, tensor.Q2_0: {0}, tensor.Q4_0: {0}, tensor.Q4_1: {0, 2}, tensor.Q5_0: {0}, tensor.Q5_1: {0, 2}, tensor.Q8_0: {0},
	tensor.Q8_1: {0, 2}, tensor.Q2_K: {80, 82}, tensor.Q3_K: {108}, tensor.Q4_K: {0, 2}, tensor.Q5_K: {0, 2}, tensor.Q6_K: {208},
	tensor.IQ1_S: {0}, tensor.IQ2_XXS: {0}, tensor.IQ2_XS: {0}, tensor.IQ2_S: {0}, tensor.IQ3_XXS: {0}, tensor.IQ3_S: {0},
	tensor.IQ4_NL: {0}, tensor.IQ4_XS: {0}, tensor.TQ1_0: {52}, tensor.TQ2_0: {64},
}

// extremes are binary16: zeros, subnormal numbers, the largest ones, infinities, NaNs of both kinds, and usual numbers.
var extremes = []uint16{
	0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0xFE55, 0x7C01, 0xFD00, 0x3C00, 0xB555,
}

const testBlocks = 1024

// blocksOf returns random blocks. The first ones have all pairs of extreme scales.
func blocksOf(dt tensor.DType) []byte {
	_, size := dt.Block()
	random := rand.New(rand.NewPCG(uint64(dt), 7))
	raw := make([]byte, testBlocks*size)
	for i := range raw {
		raw[i] = byte(random.Uint32())
	}
	le := binary.LittleEndian
	for i := range len(extremes) * len(extremes) {
		block := raw[i*size : (i+1)*size]
		pair := [2]uint16{extremes[i%len(extremes)], extremes[i/len(extremes)]}
		for k, at := range halves[dt] {
			le.PutUint16(block[at:], pair[k])
		}
		switch dt {
		case tensor.Q8_K:
			le.PutUint32(block, uint32(pair[0])<<16|uint32(pair[1]))
			if i%4 == 0 {
				le.PutUint32(block, []uint32{0x7F800000, 0xFF800000, 0x7FC01234, 0x7F800001, 1, 0x807FFFFF, 0x7F7FFFFF}[i/4%7])
			}
		case tensor.IQ1_M: // the scale is in the highest 4 bits of four words
			for k := range 4 {
				at := block[48+2*k+1:]
				at[0] = at[0]&15 | byte(pair[0]>>(4*k))<<4
			}
		case tensor.MXFP4:
			block[0] = byte(i)
		}
	}
	return raw
}

// bitsOf returns the bits of values. A NaN becomes the usual one: its sign and payload depend on the processor.
func bitsOf(values []float32, exact bool) []byte {
	out := make([]byte, 4*len(values))
	for i, v := range values {
		if v != v && !exact {
			v = math.Float32frombits(0x7FC00000)
		}
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
	}
	return out
}

func convert(t *testing.T, dt tensor.DType, raw []byte) []float32 {
	t.Helper()
	elements, size := dt.Block()
	out := make([]float32, len(raw)/size*elements)
	require.NoError(t, gguf.Dequantize(out, dt, raw))
	return out
}

// reference is a program that converts with ggml's C code.
type reference []string

// buildReference compiles testdata/reference.c with the sources of ggml, whose folder SHAREDTENSOR_GGML names.
// SHAREDTENSOR_TEST_EXEC is the command that runs programs of another architecture, and CC its compiler.
func buildReference(t testing.TB, flags ...string) reference {
	t.Helper()
	source := os.Getenv("SHAREDTENSOR_GGML")
	drivertest.Needs(t, "ggml", source != "", "SHAREDTENSOR_GGML names no folder with ggml's sources")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	program := filepath.Join(t.TempDir(), "reference")
	args := append(flags, "-DNDEBUG", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-static",
		"-I"+source+"/include", "-I"+source+"/src", "testdata/reference.c", source+"/src/ggml-quants.c", "-lm", "-o", program)
	out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return append(strings.Fields(os.Getenv("SHAREDTENSOR_TEST_EXEC")), program)
}

func (r reference) run(t testing.TB, input []byte, args ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), r[0], append(r[1:], args...)...)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr
	out, err := command.Output()
	require.NoError(t, err)
	return out
}

// stricter names the refusals of files that ggml accepts.
var stricter = map[string]string{
	"bool":           "ggml takes any number but 0 for true",
	"key not UTF-8":  "keys and names are text in manifests",
	"name not UTF-8": "keys and names are text in manifests",
	"no name":        "a tensor without a name cannot be found",
}

// ggml refuses the files that are refused here, except for the listed ones, and accepts all alignments.
func TestReadHeaderAsGGML(t *testing.T) {
	t.Parallel()
	check := buildHeaderReference(t)
	dir := t.TempDir()
	var names, files []string
	add := func(name string, data []byte) {
		names, files = append(names, name), append(files, filepath.Join(dir, strconv.Itoa(len(files))))
		require.NoError(t, os.WriteFile(files[len(files)-1], data, 0o600))
	}
	for name, row := range refusals() {
		add(name, row.file)
	}
	refused := len(names)
	for a, file := range alignments() {
		add(strconv.Itoa(int(a)), file)
	}
	accepts := strings.Fields(string(check.run(t, nil, files...)))
	require.Len(t, accepts, len(names))
	for i, name := range names {
		_, listed := stricter[name]
		require.Equal(t, i >= refused || listed, accepts[i] == "1", name)
	}
}

// buildHeaderReference compiles testdata/header.cpp, as buildReference does.
func buildHeaderReference(t *testing.T) reference {
	t.Helper()
	source := os.Getenv("SHAREDTENSOR_GGML")
	drivertest.Needs(t, "native", os.Getenv("SHAREDTENSOR_TEST_EXEC") == "", "another architecture is emulated: the headers are compared on this one")
	drivertest.Needs(t, "ggml", source != "", "SHAREDTENSOR_GGML names no folder with ggml's sources")
	_, err := exec.LookPath("g++")
	drivertest.Needs(t, "ggml", err == nil, "g++ is not installed")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/ggml-version.h", nil, 0o600)) // the build of ggml generates it
	flags := []string{"-O1", "-DNDEBUG", `-DGGML_VERSION="0"`, `-DGGML_COMMIT="0"`, "-ffunction-sections", "-I" + dir, "-I" + source + "/include", "-I" + source + "/src"}
	build := func(command string, args ...string) {
		out, err := exec.CommandContext(t.Context(), command, append(slices.Clone(flags), args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	build("gcc", "-c", source+"/src/ggml.c", "-o", dir+"/ggml.o")
	build("gcc", "-c", source+"/src/ggml-quants.c", "-o", dir+"/quants.o")
	build("g++", "-std=c++17", "-Wl,--gc-sections", "testdata/header.cpp", source+"/src/gguf.cpp", source+"/src/ggml-threading.cpp",
		dir+"/ggml.o", dir+"/quants.o", "-lm", "-lpthread", "-o", dir+"/header")
	return reference{dir + "/header"}
}

// number returns the ggml_type of a block-quantised type.
func number(dt tensor.DType) string { return strconv.Itoa(int(dt) - 64) }

// referenceTypes are the types that ggml converts.
func referenceTypes() (all []tensor.DType) {
	for _, dt := range tensor.QuantizedDTypes() {
		if dt != tensor.Q8_1 {
			all = append(all, dt)
		}
	}
	return all
}

// Random blocks, also with scales that are not finite, have the bits that ggml's C code computes. With the flag -update,
// it writes digests.json.
func TestDequantizeAsGGML(t *testing.T) {
	t.Parallel()
	c := buildReference(t, "-O2", "-ffp-contract=off")
	digests := map[string]string{}
	for _, dt := range referenceTypes() {
		elements, size := dt.Block()
		raw := blocksOf(dt)
		want := c.run(t, raw, "convert", number(dt), strconv.Itoa(size), strconv.Itoa(elements))
		got := convert(t, dt, raw)
		require.Len(t, want, 4*len(got))
		values := make([]float32, len(got))
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(want[4*i:]))
			if a, b := math.Float32bits(got[i]), math.Float32bits(values[i]); a != b {
				t.Errorf("%v: element %d of block %d is %08x, not %08x", dt, i%elements, i/elements, a, b)
				break
			}
		}
		sum := sha256.Sum256(bitsOf(values, false))
		digests[dt.String()] = hex.EncodeToString(sum[:])
	}
	if *update {
		text, err := json.MarshalIndent(digests, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("testdata/digests.json", append(text, '\n'), 0o644))
	}
}

// The same blocks have the values whose digest ggml's C code determined, on every processor.
func TestDequantizeDigests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/digests.json")
	require.NoError(t, err)
	var digests map[string]string
	require.NoError(t, json.Unmarshal(text, &digests))
	require.Len(t, digests, len(referenceTypes()))
	for _, dt := range referenceTypes() {
		sum := sha256.Sum256(bitsOf(convert(t, dt, blocksOf(dt)), false))
		require.Equal(t, digests[dt.String()], hex.EncodeToString(sum[:]), dt)
	}
}

// Blocks of Q8_1 have the values of blocks of Q8_0 with the same scale and numbers: ggml has no conversion of Q8_1.
func TestDequantizeQ8_1(t *testing.T) {
	t.Parallel()
	raw := blocksOf(tensor.Q8_1)
	var same []byte
	for i := 0; i < len(raw); i += 36 {
		same = append(append(same, raw[i:i+2]...), raw[i+4:i+36]...)
	}
	require.Equal(t, bitsOf(convert(t, tensor.Q8_0, same), true), bitsOf(convert(t, tensor.Q8_1, raw), true))
}

// BenchmarkDequantize converts a million elements of each type, alternately in Go and with ggml's C code.
func BenchmarkDequantize(b *testing.B) {
	const n = 1 << 20
	for _, build := range []struct {
		name  string
		flags []string
	}{{"ggml", []string{"-O3"}}, {"ggml-native", []string{"-O3", "-march=native"}}} {
		var c reference
		b.Run(build.name, func(b *testing.B) {
			c = buildReference(b, build.flags...)
			for _, dt := range referenceTypes() {
				elements, size := dt.Block()
				b.Run(fmt.Sprint(dt), func(b *testing.B) {
					out := c.run(b, nil, "bench", number(dt), strconv.Itoa(n/elements*size), strconv.Itoa(n), strconv.Itoa(b.N))
					ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
					require.NoError(b, err)
					report(b, n, ns)
				})
			}
		})
	}
	b.Run("go", func(b *testing.B) {
		for _, dt := range tensor.QuantizedDTypes() {
			elements, size := dt.Block()
			raw, out := bytes.Repeat([]byte{0x31}, n/elements*size), make([]float32, n)
			b.Run(fmt.Sprint(dt), func(b *testing.B) {
				for b.Loop() {
					require.NoError(b, gguf.Dequantize(out, dt, raw))
				}
				report(b, n, float64(b.Elapsed().Nanoseconds())/float64(b.N))
			})
		}
	})
}

// report reports the bytes of float32 that are written in a second.
func report(b *testing.B, elements int, ns float64) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(4*float64(elements)/ns, "GB/s")
}
