package command

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTasksWatchOnTerminal(t *testing.T) {
	p := newPlace(t)
	p.service()
	screen := newPTY(t, 100, 20)
	c := p.command("tasks", "--watch")
	screen.run(c)
	id := strings.TrimSpace(p.must(append([]string{"submit"}, slow...)...))
	eventually(t, "there is a bar", func() bool {
		return strings.Contains(screen.screen.String(), id[:12]+"  build_model  ▕")
	})
	p.must("cancel", id[:12])
	eventually(t, "the bar has become a line", func() bool {
		return strings.Contains(screen.screen.String(), id[:12]+" build_model cancelled")
	})
	_, err := screen.master.Write([]byte{3}) // ctrl-C
	require.NoError(t, err)
	require.NoError(t, c.Wait())
}
