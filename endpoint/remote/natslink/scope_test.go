package natslink

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A pattern is within another one only if all its subjects are.
func TestSubset(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allowed, pattern string
		want             bool
	}{
		{"bin.a.>", "bin.a.x", true},
		{"bin.a.>", "bin.a.x.>", true},
		{"bin.a.>", "bin.a", false},
		{"bin.a.>", "bin.*.x", false},
		{"bin.a.>", ">", false},
		{"bin.a.*", "bin.a.x", true},
		{"bin.a.*", "bin.a.*", true},
		{"bin.a.*", "bin.a.>", false},
		{"bin.a.*", "bin.a.x.y", false},
		{"bin.a.x", "bin.a.*", false},
		{"bin.a.x.*", "bin.a.x", false},
		{">", "bin.>", true},
	} {
		require.Equal(t, c.want, covers([]string{c.allowed}, c.pattern), "%s covers %s", c.allowed, c.pattern)
	}
}

// A client with scopes creates consumers and purges only within its scopes.
func TestGateChecksRequests(t *testing.T) {
	t.Parallel()
	c := &clientAccount{scopes: Scopes{Read: []string{"bin.all"}, Write: []string{"bin.part.a.*"}}.parse()}
	for request, want := range map[[2]string]bool{
		{"CONSUMER.CREATE.BINS_all.x", `{"config":{}}`}:                                                                    true,
		{"CONSUMER.CREATE.BINS_all.x", `{"config":{"deliver_subject":"_INBOX.x"}}`}:                                        false,
		{"CONSUMER.CREATE.BINS_part.x", `{"config":{}}`}:                                                                   false,
		{"CONSUMER.CREATE.BINS_part.x", `{"config":{"filter_subject":"bin.part.a.x"}}`}:                                    true,
		{"CONSUMER.CREATE.BINS_part.x", `{"config":{"filter_subject":"bin.part.>"}}`}:                                      false,
		{"CONSUMER.CREATE.BINS_part.x", `{"config":{"filter_subjects":["bin.part.a.x","bin.part.b.x"]}}`}:                  false,
		{"CONSUMER.CREATE.BINS_part.x", `{"config":{"filter_subject":"bin.part.b.x","filter_subjects":["bin.part.a.x"]}}`}: false,
		{"STREAM.PURGE.BINS_all", `{"filter":"bin.all.x"}`}:                                                                false,
		{"STREAM.PURGE.BINS_part", ``}:                                                                                     false,
		{"STREAM.PURGE.BINS_part", `{"filter":"bin.part.a.*"}`}:                                                            true,
		{"STREAM.PURGE.BINS_part", `{"filter":"bin.part.b.x"}`}:                                                            false,
		{"STREAM.PURGE.OBJ_BINS_part", `{"filter":"$O.BINS_part.C.id"}`}:                                                   true,
		{"STREAM.PURGE.OBJ_BINS_part", `{"filter":"$O.BINS_part.C.*"}`}:                                                    false,
		{"STREAM.DELETE.BINS_part", ``}:                                                                                    false,
	} {
		err := c.check(request[0], []byte(request[1]))
		require.Equal(t, want, err == nil, "%v: %v", request, err)
	}
}
