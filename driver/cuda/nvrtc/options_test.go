package nvrtc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Invalid options are refused before the library is loaded.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		`architecture "90"`:       {Arch: "90"},
		`architecture "sm_90 -G"`: {Arch: "sm_90 -G"},
		"needs a real":            {Arch: "compute_90", Format: Cubin},
		"no format 9":             {Format: 9},
		"no standard 9":           {Standard: 9},
		"negative":                {MaxRegisters: -1},
		"not an identifier":       {Defines: map[string]string{"a b": ""}},
		"the value of macro A":    {Defines: map[string]string{"A": "\x00"}},
		"has no name":             {Headers: map[string]string{"": "x"}},
		"header a.h contains":     {Headers: map[string]string{"a.h": "\x00"}},
		"an option is empty":      {Extra: []string{""}},
		"a name expression":       {Names: []string{"a\x00"}},
		"a folder is empty":       {IncludeDirs: []string{""}},
	} {
		_, err := Compile(t.Context(), "k.cu", "", o)
		require.ErrorIs(t, err, ErrOptions, want)
		require.ErrorContains(t, err, want)
	}
	_, err := Compile(t.Context(), "k.cu", "a\x00b", Options{})
	require.ErrorContains(t, err, "the source contains a NUL")
}

func TestFlags(t *testing.T) {
	t.Parallel()
	o := Options{
		Arch: "sm_90a", Format: LTOIR, Standard: CPP20, Debug: true, LineInfo: true, FastMath: true, Relocatable: true, MaxRegisters: 64,
		Defines: map[string]string{"B": "2", "A": ""}, IncludeDirs: []string{"/usr/include"}, Extra: []string{"-w"},
	}
	flags, err := o.flags()
	require.NoError(t, err)
	require.Equal(t, []string{
		"-no-source-include", "-arch=sm_90a", "-dlto", "-std=c++20", "-G", "-lineinfo", "-use_fast_math", "-rdc=true", "-maxrregcount=64",
		"-DA=1", "-DB=2", "-I/usr/include", "-w",
	}, flags)
	require.Equal(t, "sm_120", SM(12, 0))
}

// Messages of the front end, of the assembler and of the library, as NVRTC 13.5 writes them.
func TestParseLog(t *testing.T) {
	t.Parallel()
	log := `dir/k.cu(3): error: identifier "y" is undefined
     x[0] = y;
            ^

a(1).h(12): warning #1105-D: #warning directive: hello
  #warning hello
   ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

k.cu(1): catastrophic error: could not open source file "n.h" (no directories in search list)
k.cu(1): note #3453-D: the final comparison was 3 < 0
  x
          detected during instantiation of "int f<N>() [with N=3]" at line 3

1 error detected in the compilation of "dir/k.cu".
ptxas application ptx input, line 32; error   : Not a name of any known instruction: 'bogus'
ptxas fatal   : Ptx assembly aborted due to errors
ptxas fatal   : out of memory
nvrtc: error: unrecognized option -foo found
`
	got := parseLog(log)
	require.Equal(t, []Diagnostic{
		{File: "dir/k.cu", Line: 3, Column: 11, Message: `identifier "y" is undefined`, Context: "     x[0] = y;\n            ^"},
		{File: "a(1).h", Line: 12, Column: 2, Severity: SeverityWarning, Code: "1105-D", Message: "#warning directive: hello", Context: "  #warning hello\n   ^"},
		{File: "k.cu", Line: 1, Message: `could not open source file "n.h" (no directories in search list)`},
		{
			File: "k.cu", Line: 1, Severity: SeverityNote, Code: "3453-D", Message: "the final comparison was 3 < 0",
			Context: "  x\n          detected during instantiation of \"int f<N>() [with N=3]\" at line 3",
		},
		{File: "application ptx input", Line: 32, Message: "Not a name of any known instruction: 'bogus'"},
		{Message: "out of memory"},
		{Message: "unrecognized option -foo found"},
	}, got)
	err := &CompileError{Source: "k.cu", Result: ERROR_COMPILATION, Diagnostics: got, Log: log}
	require.EqualError(t, err, `dir/k.cu:3:11: error: identifier "y" is undefined (and 4 more errors)`)
	require.EqualError(t, &CompileError{Source: "k.cu", Result: ERROR_INVALID_OPTION, Diagnostics: got[6:]}, "nvrtc: k.cu: unrecognized option -foo found")
	require.EqualError(t, &CompileError{Source: "k.cu", Result: ERROR_INTERNAL_ERROR}, "nvrtc: k.cu: NVRTC_ERROR_INTERNAL_ERROR (11): the compiler failed")
}
