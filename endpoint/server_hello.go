package endpoint

import (
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// hello is the server's hello.
func (s *Server) hello() message.Hello {
	return message.Hello{
		Server: s.id, Version: Version(), PID: int32(os.Getpid()), Label: limits.ShortLabel(s.opts.Label), Devices: s.devices.Describe(),
		Features: s.features(),
	}
}

// features are those of a server: it names offers where it takes some.
func (s *Server) features() []string {
	list := features(s.opts.Limits.Wire)
	if s.opts.Offers == nil {
		list = slices.DeleteFunc(list, func(f string) bool { return f == message.FeatureOffer })
	}
	return list
}
