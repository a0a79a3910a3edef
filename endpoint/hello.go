package endpoint

import (
	"runtime/debug"
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
	return list
}

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
