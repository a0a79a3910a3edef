package endpoint

import (
	"runtime/debug"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// features are the optional parts of the protocol that this package has, on connections with these limits.
func features(l wire.Limits) []string {
	list := []string{message.FeatureKeep, message.FeaturePool, message.FeatureOffer, message.FeatureDigests}
	if l.Rings() {
		list = append(list, message.FeatureRing)
	}
	return slices.DeleteFunc(list, func(f string) bool { return slices.Contains(without, f) })
}

// without are features that this process does not have: the tests run once without each that others may lack.
var without []string

// Version is the version of this module as it was built into the program, such as "v0.1.0", or "devel".
func Version() string { return version() }

var version = sync.OnceValue(func() string {
	const path = "github.com/sharedtensor/sharedtensor"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path && m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return "devel"
})
