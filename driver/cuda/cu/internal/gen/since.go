package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
)

// sinceTable maps a symbol to the CUDA versions that introduced its forms. cudaTypedefs.h has one PFN_ type for each
// form of a function, named with the version, oldest form first when sorted. The forms' symbols are numbered in the
// same order.
type sinceTable map[string][]int

var pfn = regexp.MustCompile(`\bPFN_(cu[A-Za-z0-9]+)_v([0-9]{4,5})(_pt[ds][sz])?\b`)

func readSince(path string) (sinceTable, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cudaTypedefs.h, which contains the versions of the functions: %w", err)
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

// of returns the version that introduced a symbol, as 1000 times the major plus 10 times the minor number. It returns 0
// if unknown.
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
