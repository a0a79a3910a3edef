package transport

import (
	"runtime/debug"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Without lists features to disable. Tests run once without each feature that a peer may lack.
var Without []string

// Features returns the optional parts of the protocol that this module supports on connections with these limits.
func Features(l wire.Limits) []string {
	list := []string{message.FeatureKeep, message.FeaturePool, message.FeatureRepeat, message.FeatureOffer, message.FeatureDigests, message.FeatureConditions, message.FeatureInline}
	if l.WithDefaults().Ring > 0 {
		list = append(list, message.FeatureRing)
	}
	return slices.DeleteFunc(list, func(f string) bool { return slices.Contains(Without, f) })
}

// Version returns the version of this module as built into the program, such as "v0.1.0", or "devel".
var Version = sync.OnceValue(func() string {
	const path = "github.com/sharedtensor/sharedtensor"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != path {
			continue
		}
		if m.Replace != nil { // the required version was not built
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	return "devel"
})
