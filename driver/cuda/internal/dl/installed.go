package dl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// installed returns the files that match names in the places where toolkits and Python wheels install libraries, in the
// order in which Load tries them: CUDA_HOME and CUDA_PATH, a virtual environment and a conda environment, the usual folders
// of the toolkit, and the site-packages folders of the user and of the system. getenv returns environment variables.
func installed(names, wheel []string, getenv func(string) string) []string {
	if len(wheel) == 0 {
		return nil // part of the driver
	}
	var folders []string
	toolkit := func(root string) {
		if root != "" && filepath.IsAbs(root) {
			folders = append(folders, filepath.Join(root, "lib64"), filepath.Join(root, "lib"))
		}
	}
	packages := func(pattern string) {
		for _, site := range newest(pattern) {
			for _, w := range wheel {
				folders = append(folders, filepath.Join(site, filepath.FromSlash(w)))
			}
		}
	}
	toolkit(getenv("CUDA_HOME"))
	toolkit(getenv("CUDA_PATH"))
	for _, env := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if root := getenv(env); filepath.IsAbs(root) {
			packages(filepath.Join(root, "lib/python3*/site-packages"))
		}
	}
	toolkit(getenv("CONDA_PREFIX"))
	toolkit("/usr/local/cuda")
	for _, root := range newest("/usr/local/cuda-*") {
		toolkit(root)
	}
	toolkit("/opt/cuda")
	if home := getenv("HOME"); filepath.IsAbs(home) {
		packages(filepath.Join(home, ".local/lib/python3*/site-packages"))
	}
	packages("/usr/local/lib/python3*/site-packages")
	packages("/usr/local/lib/python3*/dist-packages")
	packages("/usr/lib/python3*/dist-packages")
	return files(folders, names)
}

// newest returns the matches of a pattern, highest version first.
func newest(pattern string) []string {
	found, _ := filepath.Glob(pattern) // the only possible error is a malformed pattern
	slices.SortFunc(found, func(a, b string) int { return compareVersions(b, a) })
	return found
}

// compareVersions compares texts that contain numbers: cuda-9.2 is less than cuda-12.1.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := leading(a), leading(b)
		if x != "" && y != "" {
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			a, b = a[len(x):], b[len(y):]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// leading returns the digits at the start of s.
func leading(s string) string { return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))] }

// files returns the existing files among names in folders, each once. Earlier folders come first; within a folder, a newer
// version does.
func files(folders, names []string) []string {
	var out []string
	for _, folder := range folders {
		for _, name := range names {
			path := filepath.Join(folder, name)
			if strings.Contains(name, "/") || slices.Contains(out, path) {
				continue
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				out = append(out, path)
			}
		}
	}
	return out
}
