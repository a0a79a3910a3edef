package cheader

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(tokens []Token) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		words[i] = t.Text
	}
	return strings.Join(words, " ")
}

func TestPreprocess(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"comments":        {"a /* b\nc */ d // e\nf", "a d f"},
		"joined lines":    {"#define M a \\\n b\nM", "a b"},
		"string":          {`x = "/* no comment */";`, `x = "/* no comment */" ;`},
		"ifdef":           {"#define A\n#ifdef A\nyes\n#else\nno\n#endif", "yes"},
		"ifndef":          {"#ifndef A\nyes\n#else\nno\n#endif", "yes"},
		"elif":            {"#if 0\na\n#elif 1\nb\n#elif 1\nc\n#else\nd\n#endif", "b"},
		"nested inactive": {"#if 0\n#if 1\na\n#else\nb\n#endif\n#else\nc\n#endif", "c"},
		"defined":         {"#define A\n#if defined(A) && !defined B\nyes\n#endif", "yes"},
		"unknown is 0":    {"#if UNKNOWN >= 201112L\nno\n#else\nyes\n#endif", "yes"},
		"predefined":      {"#if defined(LP64) && (LP64 == 1)\nyes\n#endif", "yes"},
		"undef":           {"#define A 1\n#undef A\nA", "A"},
		"inactive code":   {"#if 0\n#error no\n#define A 1\n'\n#endif\nA", "A"},
		"function":        {"#define F(x, y) y x\nF(a, (b, c))", "( b , c ) a"},
		"no call":         {"#define F(x) y\nF z", "F z"},
		"not a function":  {"#define F (x)\nF", "( x )"},
		"paste":           {"#define P(a) a ## _ptsz\n#define N P(N_v2)\nN", "N_v2_ptsz"},
		"paste expanded":  {"#define I(x, y) x ## y\n#define O(x, y) I(x, y)\n#define V 1\nO(T_v, V)", "T_v1"},
		"itself":          {"#define P(a) a\n#define A P(A_v2)\n#define A_v2 P(A_v2)\nA A_v2", "A_v2 A_v2"},
		"mutual macros":   {"#define A B\n#define B A\nA B", "A B"},
		"include, pragma": {"#include <x.h>\n#pragma once\na", "a"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			u, err := Preprocess(test.in, map[string]string{"LP64": "1"})
			require.NoError(t, err)
			require.Equal(t, test.want, text(u.Tokens))
		})
	}
}

func TestPreprocessRefuses(t *testing.T) {
	double := "#define A0 x x\n"
	for i := range 30 {
		double += strings.NewReplacer("N", string(rune('A'+i%26))+strings.Repeat("z", i/26+1),
			"M", string(rune('A'+(i+1)%26))+strings.Repeat("z", (i+1)/26+1)).Replace("#define N M M\n")
	}
	for name, in := range map[string]string{
		"comment":         "/* a",
		"string":          "\"a",
		"if":              "#if 1\na",
		"endif":           "#endif",
		"error":           "#error stop",
		"directive":       "#what",
		"define":          "#define",
		"condition":       "#if 1 +\n#endif",
		"division":        "#if 1 / 0\n#endif",
		"shift":           "#if 1 << 100\n#endif",
		"arguments":       "#define F(x) x\nF(a",
		"argument count":  "#define F(x) x\nF(a, b)",
		"macro arguments": "#define F(x\n",
		"brackets":        "#if " + strings.Repeat("(", 1000) + "\n#endif",
		"minus":           "#if " + strings.Repeat("-", 1000) + "1\n#endif",
		"growth":          double + "Az",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Preprocess(in, nil)
			require.Error(t, err)
		})
	}
}

func parse(t *testing.T, in string) *Header {
	t.Helper()
	u, err := Preprocess(in, nil)
	require.NoError(t, err)
	h, err := Parse(u)
	require.NoError(t, err)
	return h
}

func TestLayoutOfRecords(t *testing.T) {
	h := parse(t, `
typedef enum { A, B = 1 << 4, C } E;
typedef struct S_st {
	char a; unsigned short b; E c; void *d; char e[3];
	union { int f; struct { unsigned char g, h; } i; };
	struct { long long j; } k[2];
	char l[64 - sizeof(void *) - 2 * sizeof(unsigned int)];
} S;
typedef struct { _Alignas(128) unsigned long long o[16]; } T;
typedef union { char c; double d; } U;
struct Later_st;
typedef struct Later_st *Handle;
`)
	s, ok := h.Typedef("S")
	require.True(t, ok)
	r := s.Resolve().Record
	var offsets []int64
	for _, f := range r.Fields {
		offsets = append(offsets, f.Offset)
	}
	require.Equal(t, []int64{0, 2, 4, 8, 16, 20, 24, 40}, offsets)
	require.Equal(t, int64(88), r.Bytes)
	require.Equal(t, int64(8), r.Align)

	big, _ := h.Typedef("T")
	require.Equal(t, int64(128), big.Resolve().Record.Align)
	union, _ := h.Typedef("U")
	require.Equal(t, int64(8), union.Resolve().Record.Bytes)
	handle, _ := h.Typedef("Handle")
	require.Equal(t, Pointer, handle.Resolve().Kind)
	require.False(t, handle.Resolve().Elem.Record.Complete)
	e, _ := h.Typedef("E")
	require.Equal(t, []Enumerator{{"A", 0}, {"B", 16}, {"C", 17}}, e.Resolve().Enum.Values)
}

func TestFunctions(t *testing.T) {
	h := parse(t, `
typedef int R; typedef struct s *X;
typedef R (*Callback)(X x, void *data);
__attribute__((deprecated)) R old(void);
R f(const X *list, const void *const *p, unsigned n[], Callback cb, float x);
static inline R g(int x) { return x ? f(0, 0, 0, 0, 0) : 1; }
extern int h(int a, ...), i();
`)
	require.Len(t, h.Functions, 4)
	require.True(t, h.Functions[0].Deprecated)
	require.Empty(t, h.Functions[0].Params)
	f := h.Functions[1]
	require.Equal(t, "f", f.Name)
	require.False(t, f.Deprecated)
	var kinds []TypeKind
	for _, p := range f.Params {
		kinds = append(kinds, p.Type.Resolve().Kind)
	}
	require.Equal(t, []TypeKind{Pointer, Pointer, Pointer, Pointer, Float}, kinds)
	require.Equal(t, Func, f.Params[3].Type.Resolve().Elem.Resolve().Kind)
}

func TestParseRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"unknown type":      "foo bar;",
		"no name":           "int;int *;",
		"no end":            "int f(int a",
		"unknown constant":  "typedef struct { char a[N]; } S;",
		"negative array":    "typedef struct { char a[-1]; } S;",
		"huge array":        "typedef struct { char a[1 << 30]; long b[1 << 30]; } S;",
		"incomplete member": "typedef struct { struct T t; } S;",
		"twice":             "struct S { int a; }; struct S { int a; };",
		"unnamed field":     "typedef struct { int *; } S;",
		"enumerator":        "enum { 1 };",
		"enumerator value":  "enum { A = B };",
		"alignment":         "typedef struct { _Alignas(3) int a; } S;",
		"body":              "int f(void) {",
		"nested":            strings.Repeat("struct {", 200),
		"deep declarator":   "typedef int " + strings.Repeat("(*", 200) + ";",
		"deep array":        "typedef int x" + strings.Repeat("[1]", 300) + ";",
	} {
		t.Run(name, func(t *testing.T) {
			u, err := Preprocess(in, nil)
			require.NoError(t, err)
			_, err = Parse(u)
			require.Error(t, err)
		})
	}
}

func TestConstants(t *testing.T) {
	u, err := Preprocess("typedef struct s *H;\n#define A ((H)0x1)\n#define B (~0u)\n#define C ((int)-2)\n#define D (1ull << 40)\n", nil)
	require.NoError(t, err)
	h, err := Parse(u)
	require.NoError(t, err)
	for name, want := range map[string]int64{"A": 1, "B": 0xffffffff, "C": -2, "D": 1 << 40} {
		body, ok := u.Expand(name)
		require.True(t, ok)
		v, err := h.Constant(body)
		require.NoError(t, err)
		require.Equal(t, want, v.Int64(), name)
	}
	a, _ := u.Expand("A")
	require.Equal(t, "H", h.CastType(a).Name)
	b, _ := u.Expand("B")
	require.Nil(t, h.CastType(b))
}

// Any text either parses or returns an error, and the layout of every parsed record is consistent.
func FuzzParse(f *testing.F) {
	f.Add("typedef struct { int a; union { char b; long c; }; } S; int f(S *s, void (*g)(int));")
	f.Add("#define A(x) x ## 1\n#if defined(A) || 0\nenum { B = A(1) << 3 };\n#endif")
	f.Add("typedef enum e { X = sizeof(int[3]) } E; typedef struct { _Alignas(16) E e[X]; } T;")
	f.Fuzz(func(t *testing.T, src string) {
		u, err := Preprocess(src, map[string]string{"__LP64__": "1"})
		if err != nil {
			return
		}
		h, err := Parse(u)
		if err != nil {
			return
		}
		for _, r := range h.records {
			if !r.Complete {
				continue
			}
			require.Zero(t, r.Bytes%r.Align)
			for _, field := range r.Fields {
				size, err := field.Type.Size()
				require.NoError(t, err)
				require.LessOrEqual(t, field.Offset+size, r.Bytes)
			}
		}
	})
}
