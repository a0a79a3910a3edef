//go:build linux

package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
)

// survivalBytes is the size of the memory that killed processes have shared.
const survivalBytes = 64 << 20

// overwrite allocates and fills memory in another process, so that memory that the driver has reclaimed does not keep
// its old bytes by chance.
func overwrite(tb testing.TB, bytes int64) {
	tb.Helper()
	p := open(tb, driver.CUDAFD)
	for _, key := range []string{"1", "2", "3"} {
		p.must(request{Do: "alloc", Key: key, Bytes: bytes, Seed: 0xEE})
	}
	p.end()
}

func TestFactOwnerKilled(t *testing.T) {
	here := kindsHere(t, openDevice(t))
	for _, kind := range here {
		name := map[driver.HandleKind]string{driver.CUDAIPC: "ipc-owner-killed", driver.CUDAFD: "fd-owner-killed"}[kind]
		if name == "" {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			o := owner(t, kind, survivalBytes, 5)
			h := o.export("m")
			reader := open(t, kind)
			require.Empty(t, reader.give("m", h, false).Error)
			reader.must(request{Do: "verify", Key: "m", Seed: 5})

			o.kill()
			overwrite(t, survivalBytes)
			r := reader.ask(request{Do: "verify", Key: "m", Seed: 5})
			says := "every byte as written, also after another process filled as much memory three times"
			if r.Error != "" {
				says = r.Answer
			}
			if more := reader.ask(request{Do: "alloc", Key: "more", Bytes: 1 << 20, Seed: 1}); more.Error != "" {
				says += "; the reader's context is lost: " + more.Answer
			} else {
				says += "; the reader goes on working"
			}
			fact(t, name, "%s", says)
			if kind == driver.CUDAFD {
				require.Empty(t, r.Error, "the product rests on this")
			}
			if kind == driver.CUDAIPC {
				late := open(t, kind)
				fact(t, "ipc-open-after-kill", "%s", late.give("m", h, false).says())
			}
		})
	}
}

func TestFactBystanderKeepsMemory(t *testing.T) {
	openDevice(t)
	bystander := start(t) // uses no CUDA
	o := owner(t, driver.CUDAFD, survivalBytes, 6)
	h := o.export("m")
	r, _ := bystander.exchange(request{Do: "keep"}, h.File)
	require.Empty(t, r.Error)
	require.NoError(t, h.Close(), "this process must not be the one that keeps it")
	o.kill()
	overwrite(t, survivalBytes)

	r, f := bystander.exchange(request{Do: "give"}, nil)
	require.Empty(t, r.Error)
	defer f.Close()
	third := open(t, driver.CUDAFD)
	h.File = f
	r = third.give("m", h, false)
	says := r.says()
	if r.Error == "" {
		if r = third.ask(request{Do: "verify", Key: "m", Seed: 6}); r.Error == "" {
			says = "yes, every byte as written"
		} else {
			says = "it imports, but: " + r.Answer
		}
	}
	fact(t, "fd-kept-by-bystander", "%s", says)
	require.Empty(t, r.Error, "surviving owners rests on this")
}

// An owner does not notice that an importer was killed. This is a requirement, not a fact to measure.
func TestImporterKilled(t *testing.T) {
	here := kindsHere(t, openDevice(t))
	for _, kind := range here {
		t.Run(string(kind), func(t *testing.T) {
			o := owner(t, kind, 8<<20, 7)
			for range 3 {
				reader := open(t, kind)
				require.Empty(t, reader.give("m", o.export("m"), false).Error)
				reader.must(request{Do: "verify", Key: "m", Seed: 7})
				reader.kill()
				o.must(request{Do: "verify", Key: "m", Seed: 7})
			}
			o.must(request{Do: "close", Key: "m"})
			o.must(request{Do: "alloc", Key: "m", Bytes: 8 << 20, Seed: 8})
			o.end()
		})
	}
}

func TestFactReadOnlyWrite(t *testing.T) {
	openDevice(t)
	for _, way := range []string{"kernel", "memset", "copy"} {
		t.Run(way, func(t *testing.T) {
			before := xids()
			o := owner(t, driver.CUDAFD, 8<<20, 9)
			other, offender := open(t, driver.CUDAFD), open(t, driver.CUDAFD)
			for _, p := range []*process{other, offender} {
				require.Empty(t, p.give("m", o.export("m"), false).Error)
			}
			wrote := offender.ask(request{Do: "write", Key: "m", Kind: way})
			after := offender.ask(request{Do: "alloc", Key: "x", Bytes: 1 << 20, Seed: 1})
			ownerSays := o.ask(request{Do: "verify", Key: "m", Seed: 9})
			otherSays := other.ask(request{Do: "verify", Key: "m", Seed: 9})
			ownerWrites := o.ask(request{Do: "write", Key: "m", Kind: way})

			says := "the writer: " + wrote.says()
			if after.Error == "" {
				says += "; its context lives on"
			} else {
				says += "; its context is lost: " + after.Answer
			}
			says += "; the owner's bytes: " + intact(ownerSays) + "; another reader: " + intact(otherSays) + "; the owner writes on: " + ownerWrites.says()
			fact(t, "readonly-"+way, "%s; %s", says, newXids(before))
			require.NotEmpty(t, wrote.Error, "a read-only mapping was written")
			for _, r := range []response{ownerSays, otherSays, ownerWrites} {
				require.Empty(t, r.Error, "only the writer may be hurt")
			}
		})
	}
}

func intact(r response) string {
	if r.Error == "" {
		return "intact"
	}
	return r.Answer
}
