package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// limits matches constants that count or combine others. They change with each addition.
var limits = regexp.MustCompile(`(_MAX|_MASK|_NUM_OPTIONS|_NUM_INPUT_TYPES|_LIGHTWEIGHT_FLAGS)$`)

// renumbered are the attributes to which CUDA 13.0 gave the numbers of their second forms, which it removed.
var renumbered = []string{"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS", "CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR"}

// Symbols, calling conventions and values in the headers of CUDA_H_OLDER agree with the current header, because a
// program built from the current header calls drivers built from older ones.
func TestOlderHeaders(t *testing.T) {
	older := filepath.SplitList(os.Getenv("CUDA_H_OLDER"))
	if len(older) == 0 {
		t.Skip("no list of headers in CUDA_H_OLDER: older headers are not compared")
	}
	current := modelOf(t, os.Getenv("CUDA_H"))
	for _, header := range older {
		m := modelOf(t, header)
		t.Run(versionText(m.version), func(t *testing.T) {
			bound := shapes(t, current)
			for symbol, want := range shapes(t, m) {
				require.Contains(t, bound, symbol)
				require.Equal(t, want, bound[symbol], "the version and the parameters of %s", symbol)
			}
			values := enumerators(current)
			for name, want := range enumerators(m) {
				if got, ok := values[name]; ok && got != want && !limits.MatchString(name) && !slices.Contains(renumbered, name) {
					t.Errorf("%s is %d, and was %d", name, got, want)
				}
			}
		})
	}
}

func modelOf(t *testing.T, header string) *model {
	t.Helper()
	m, err := readModel(cuTarget, header)
	require.NoError(t, err)
	return m
}

// shape is the part of a function that its callers depend on.
type shape struct {
	since  int
	params []param // class and number of words
}

func shapes(t *testing.T, m *model) map[string]shape {
	t.Helper()
	out := map[string]shape{}
	for _, f := range m.functions {
		params, err := m.params(f)
		require.NoError(t, err)
		for i := range params {
			params[i] = param{class: params[i].class, words: params[i].words}
		}
		out[f.symbol] = shape{f.since, params}
	}
	return out
}

func enumerators(m *model) map[string]int64 {
	out := map[string]int64{}
	for _, e := range m.enums() {
		for _, v := range e.Enumerators() {
			value, _ := number(v.Value())
			out[v.Token.SrcStr()] = value
		}
	}
	return out
}
