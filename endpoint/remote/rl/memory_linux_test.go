package rl_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A worker that receives parameters over NATS holds them once while and after it receives them. A worker with the trainer's
// owner holds the pages that it reads.
func TestWorkerHoldsParametersOnce(t *testing.T) {
	const modelKiB = 256 << 10 // several times the messages that the client library holds
	site := newSite(t)
	for name, c := range map[string]struct {
		socket string
		most   int // growth of the peak in KiB
	}{"over NATS": {"", modelKiB * 7 / 4}, "with an owner": {site.socket, modelKiB / 4}} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
			defer cancel()
			var owner *endpoint.Client
			if c.socket != "" {
				owner = site.owner(t)
			}
			opts := site.options(t, "trainer", owner)
			opts.Run = strings.ReplaceAll(name, " ", "-")
			opts.LocalOnly = owner != nil
			trainer, err := rl.NewTrainer(ctx, opts)
			require.NoError(t, err)
			defer trainer.Close()
			worker := startChild(t, "worker", site.url, opts.Run, "worker", c.socket)
			received := func(elements int64) int {
				w, err := tensor.Zeros(site.dev, tensor.Float32, tensor.Shape{elements})
				require.NoError(t, err)
				sd := module.NewStateDict()
				require.NoError(t, sd.Set("w", w))
				_, err = trainer.Publish(ctx, sd)
				require.NoError(t, err)
				require.NoError(t, sd.Close())
				samples, err := trainer.Pull(ctx, 1)
				require.NoError(t, err)
				require.NoError(t, samples[0].Ack(ctx))
				return remotetest.ProcStatus(t, worker.cmd.Process.Pid, "VmHWM")
			}
			before := received(1)
			after := received(modelKiB << 10 / 4)
			t.Logf("the peak of the worker's memory grew by %.2f models", float64(after-before)/modelKiB)
			require.Less(t, after-before, c.most)
		})
	}
}
