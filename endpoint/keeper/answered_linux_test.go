package keeper_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A publisher receives the answer after the store has the memory and the journal has the version, in this order. Readers
// see the version after that as well.
func TestPublicationIsAnsweredAfterItIsKept(t *testing.T) {
	t.Parallel()
	t.Run("keeper", func(t *testing.T) {
		t.Parallel()
		c := newCrashTest(t)
		testAnsweredAfterKept(c, func() (map[string]*os.File, error) {
			store, err := connectKeeper(keeperOf(c.socket, nil))
			if err != nil {
				return nil, err
			}
			defer store.Close()
			return store.Stored()
		})
	})
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		_, path := directoryOf(t)
		testAnsweredAfterKept(newCrashTest(t, directory+path), func() (map[string]*os.File, error) {
			files, err := filepath.Glob(filepath.Join(path, "sharedtensor.*"))
			stored := map[string]*os.File{}
			for _, file := range files {
				if err == nil {
					stored[strings.TrimPrefix(filepath.Base(file), "sharedtensor.")], err = os.Open(file)
				}
			}
			return stored, err
		})
	})
}

func testAnsweredAfterKept(c *crashTest, open func() (map[string]*os.File, error)) {
	t := c.t
	c.ownerPID()
	for i, step := range []string{"publish begun", "publish stored", "publish recorded", "publish visible"} {
		name := fmt.Sprint("model-", i)
		command := fmt.Sprint("publish ", name, " ", i)
		a := c.actor("publisher")
		done, hit, _ := c.reach(step, func() <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := a.ask(command)
				done <- err
			}()
			return done
		})
		memory, journal := kept(t, open)
		for end := time.Now().Add(10 * time.Second); i >= 1 && memory <= i && time.Now().Before(end); time.Sleep(time.Millisecond) {
			memory, journal = kept(t, open) // the descriptor may still be in the queue of the keeper's socket, which outlives the owner
		}
		stored, recorded, visible := i >= 1, i >= 2, i >= 3
		require.Equal(t, stored, memory == i+1, "%s: %d memory files", step, memory)
		require.Equal(t, recorded, strings.Contains(journal, name), step)
		_, err := c.actor("client").ask("acquire " + name) // does not wait for the publication
		require.Equal(t, visible, err == nil, "%s: %v", step, err)
		select {
		case err := <-done:
			require.Fail(t, "answered before it was visible", "%s: %v", step, err)
		case <-time.After(100 * time.Millisecond):
		}
		hit.Close()
		require.NoError(t, <-done)
		c.acknowledged[name] = published{1, i}
	}
	_ = syscall.Kill(c.ownerPID(), syscall.SIGKILL)
	c.verify(cell{})
}

// kept returns the number of files with memory in a store and the bytes of its journals.
func kept(t testing.TB, open func() (map[string]*os.File, error)) (memory int, journal string) {
	t.Helper()
	stored, err := open()
	require.NoError(t, err)
	for name, f := range stored {
		if strings.HasPrefix(name, "v") {
			memory++
		} else {
			text, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
			require.NoError(t, err)
			journal += string(text)
		}
		require.NoError(t, f.Close())
	}
	return memory, journal
}
