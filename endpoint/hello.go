package endpoint

import (
	"runtime/debug"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
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

// shortLabel makes a label fit to be kept and shown.
func shortLabel(label string) string { return shortText(label, limits.LabelBytes) }

// shortText is what is kept of a text that a peer sent: its first printable characters, in at most limit bytes of their
// own, so that no part of a large text keeps all of it in memory.
func shortText(text string, limit int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return strings.Clone(b.String())
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
