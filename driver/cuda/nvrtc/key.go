package nvrtc

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// fileOptions are the prefixes of options that read or write files.
var fileOptions = []string{"-I", "-include", "-pre-include", "-pch", "-create-pch", "-use-pch", "-time", "-fdevice-time-trace"}

// cacheKey returns the key of a compilation: everything that determines the result. ok is false if there is no cache, or if
// the result depends on files in a way that the key cannot cover.
func cacheKey(name, source string, flags []string, o *Options) (key jitcache.Key, ok bool) {
	if o.Cache == nil {
		return key, false
	}
	for _, flag := range o.Extra {
		flag = "-" + strings.TrimLeft(flag, "-")
		if slices.ContainsFunc(fileOptions, func(prefix string) bool { return strings.HasPrefix(flag, prefix) }) {
			return key, false
		}
	}
	parts := []string{"nvrtc", lib.Identity(), name, source, o.Format.String()}
	list := func(what string, items []string) {
		parts = append(append(parts, fmt.Sprint(what, len(items))), items...)
	}
	if major, minor, err := Version(); err == nil {
		parts = append(parts, fmt.Sprint(major, ".", minor))
	}
	list("flags", flags)
	list("names", o.Names)
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		list("header", []string{name, o.Headers[name]})
	}
	for _, dir := range o.IncludeDirs {
		files, ok := describeFiles(dir)
		if !ok {
			return key, false
		}
		list("files", files)
	}
	return jitcache.NewKey(parts...), true
}

// maxFiles limits the files in a folder of headers. The results of compilations with a larger folder are not stored.
const maxFiles = 20_000

// describeFiles returns the names, sizes and times of the files in a folder, so that a changed header changes the key.
func describeFiles(dir string) (files []string, ok bool) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, false
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := os.Stat(path) // of a link's target
		if err != nil {
			return err
		}
		if len(files) == maxFiles || info.IsDir() {
			return errors.ErrUnsupported
		}
		files = append(files, fmt.Sprint(path, "\x00", info.Size(), "\x00", info.ModTime().UnixNano()))
		return nil
	})
	return files, err == nil
}
