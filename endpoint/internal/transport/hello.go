package transport

import (
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// without lists features to disable.
var without atomic.Pointer[[]string]

// Disable disables features for connections that begin afterwards, and returns the previous list. Tests run once without
// each feature that a peer may lack.
func Disable(features []string) (before []string) {
	if old := without.Swap(&features); old != nil {
		return *old
	}
	return nil
}

// Disabled reports whether a feature is disabled.
func Disabled(feature string) bool {
	off := without.Load()
	return off != nil && slices.Contains(*off, feature)
}

// Features returns the optional parts of the protocol that this module supports on connections with these limits.
func Features(l wire.Limits) []string {
	list := []string{message.FeatureKeep, message.FeaturePool, message.FeatureRepeat, message.FeatureOffer, message.FeatureDigests, message.FeatureConditions, message.FeatureInline,
		message.FeaturePlacements, message.FeatureParts, message.FeatureTaskLabels}
	if l.WithDefaults().Ring > 0 {
		list = append(list, message.FeatureRing)
	}
	return slices.DeleteFunc(list, Disabled)
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
