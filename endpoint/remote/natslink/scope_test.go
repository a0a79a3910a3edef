package natslink

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
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

// A client with scopes reads, creates consumers and purges only within its scopes.
func TestGateChecksRequests(t *testing.T) {
	t.Parallel()
	c := &clientAccount{scopes: scopesOf(rights.Scopes{Read: []string{"bin.all"}, Write: []string{"bin.part.a.*"}})}
	for request, want := range map[[2]string]bool{
		{"CONSUMER.CREATE.BINS_all.x", `{"stream_name":"BINS_all","config":{}}`}:                                                                     true,
		{"CONSUMER.CREATE.BINS_all.x", `{"stream_name":"BINS_all","config":{"deliver_subject":"_INBOX.x"}}`}:                                         false,
		{"CONSUMER.CREATE.BINS_part.x", `{"stream_name":"BINS_part","config":{}}`}:                                                                   false,
		{"CONSUMER.CREATE.BINS_part.x", `{"stream_name":"BINS_part","config":{"filter_subject":"bin.part.a.x"}}`}:                                    true,
		{"CONSUMER.CREATE.BINS_part.x", `{"stream_name":"BINS_part","config":{"filter_subject":"bin.part.>"}}`}:                                      false,
		{"CONSUMER.CREATE.BINS_part.x", `{"stream_name":"BINS_part","config":{"filter_subjects":["bin.part.a.x","bin.part.b.x"]}}`}:                  false,
		{"CONSUMER.CREATE.BINS_part.x", `{"stream_name":"BINS_part","config":{"filter_subject":"bin.part.b.x","filter_subjects":["bin.part.a.x"]}}`}: false,
		{"STREAM.PURGE.BINS_all", `{"filter":"bin.all.x"}`}:                                                                                          false,
		{"STREAM.PURGE.BINS_part", ``}:                                                                  false,
		{"STREAM.PURGE.BINS_part", `{"filter":"bin.part.a.*"}`}:                                         true,
		{"STREAM.PURGE.BINS_part", `{"filter":"bin.part.b.x"}`}:                                         false,
		{"STREAM.PURGE.OBJ_BINS_part", `{"filter":"$O.BINS_part.C.id"}`}:                                true,
		{"STREAM.PURGE.OBJ_BINS_part", `{"filter":"$O.BINS_part.C.*"}`}:                                 false,
		{"DIRECT.GET.BINS_all", `{"seq":7}`}:                                                            true,
		{"DIRECT.GET.BINS_part", `{"seq":7}`}:                                                           false,
		{"DIRECT.GET.BINS_part", `{"seq":7,"next_by_subj":"*.part.a.x","batch":5,"max_bytes":9}`}:       true,
		{"DIRECT.GET.BINS_part", `{"seq":7,"next_by_subj":"bin.part.>","batch":5}`}:                     false,
		{"DIRECT.GET.BINS_part", `{"start_time":"2026-01-02T03:04:05Z","next_by_subj":"bin.part.a.x"}`}: false,
		{"DIRECT.GET.BINS_part", `{"multi_last":["bin.part.a.x","bin-take.part.a.y"]}`}:                 true,
		{"DIRECT.GET.BINS_part", `{"multi_last":["bin.part.a.x",""]}`}:                                  false,
		{"DIRECT.GET.BINS_part", `{"last_by_subj":"bin.part.a.x"}`}:                                     true,
		{"DIRECT.GET.BINS_part", ``}:                                                                    false,
		{"STREAM.MSG.GET.BINS_part", `{"last_by_subj":"bin.part.b.x"}`}:                                 false,
		{"STREAM.MSG.GET.BINS_part", `{"seq":7,"next_by_subj":"bin.part.a.x"}`}:                         true,
		{"STREAM.MSG.DELETE.BINS_all", `{"seq":7}`}:                                                     false,
		{"DIRECT.GET.OBJ_BINS_all", `{"seq":7}`}:                                                        true,
		{"STREAM.DELETE.BINS_part", ``}:                                                                 false,
	} {
		_, err := c.check(request[0], []byte(request[1]))
		require.Equal(t, want, err == nil, "%v: %v", request, err)
	}
}

// The scopes of a training run contain its streams and no others.
func TestScopesOfRuns(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"rl", "rl.", "rl.a.b", "rl.a.>", "rl.*", "rl.a.worker.x", "queue.a.b", "bin.a..b", "other.a"} {
		require.Error(t, rights.CheckScope(text), text)
	}
	streams := func(s rights.Scopes) (list []string) {
		for _, one := range scopesOf(s) {
			text := one.stream()
			switch {
			case one.AddOnly:
				text += " add"
			case one.Write:
				text += " write"
			}
			list = append(list, text)
		}
		return list
	}
	require.Equal(t, []string{"BINS_rl write", "OBJ_RL_a_parameters write", "KV_RL_a write", "QUEUE_rl_a write"}, streams(rights.Scopes{Write: []string{"rl.a"}}))
	require.Equal(t, []string{"BINS_rl", "OBJ_RL_a_parameters", "KV_RL_a write", "QUEUE_rl_a add"}, streams(rights.Scopes{Write: []string{"rl.a.worker"}}))
	require.Equal(t, []string{"BINS_rl", "OBJ_RL_a_parameters", "KV_RL_a"}, streams(rights.Scopes{Read: []string{"rl.a"}}))
}
