package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
)

// sinceTable says which CUDA version brought a symbol. cudaTypedefs.h has one PFN_ type per form of a function, named
// with the version, oldest form first when sorted; the forms' symbols are numbered in the same order.
type sinceTable map[string][]int

var pfn = regexp.MustCompile(`\bPFN_(cu[A-Za-z0-9]+)_v([0-9]{4,5})(_pt[ds][sz])?\b`)

func readSince(path string) (sinceTable, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the versions that brought the functions are in cudaTypedefs.h: %w", err)
	}
	t := sinceTable{}
	for _, match := range pfn.FindAllStringSubmatch(string(text), -1) {
		v, err := strconv.Atoi(match[2])
		if err != nil || match[3] != "" {
			continue
		}
		if !slices.Contains(t[match[1]], v) {
			t[match[1]] = append(t[match[1]], v)
		}
	}
	for name := range t {
		slices.Sort(t[name])
	}
	return t, nil
}

// of is the version that brought a symbol, as 1000 times the major plus 10 times the minor number; 0 if unknown.
func (t sinceTable) of(symbol string) int {
	base := versionSuffix.ReplaceAllString(symbol, "")
	versions := t[base]
	form := 1
	if base != symbol {
		form, _ = strconv.Atoi(symbol[len(base)+2:])
	}
	if form < 1 || form > len(versions) {
		return 0
	}
	return versions[form-1]
}
