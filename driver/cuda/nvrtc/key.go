package nvrtc

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// fileOptions are the prefixes of options that read or write files.
var fileOptions = []string{"-I", "-include", "-pre-include", "-pch", "-create-pch", "-use-pch", "-time", "-fdevice-time-trace"}

// cacheKey returns the key of a compilation: everything that determines the result. ok is false if there is no cache, or if
// the result depends on files in a way that the key cannot cover.
func cacheKey(name, source string, flags []string, o *Options, in *includes) (key jitcache.Key, ok bool) {
	if o.Cache == nil || in.computed {
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
	list("files", in.describe())
	return jitcache.NewKey(parts...), true
}
