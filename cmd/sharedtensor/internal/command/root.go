// Package command contains the commands of the program sharedtensor, one file for each command. Commands with much
// output have an additional file for it.
package command

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

const rootHelp = `Share models between the processes of a host, in place: one process owns the tensors,
other processes use them without a copy.

Start with:
  sharedtensor doctor                        what this host can share
  sharedtensor serve llm=model.safetensors   own a model
  sharedtensor ls                            what is served, and its holders

The owner's socket is the first of these that applies:
  --socket PATH
  $SHARED_TENSOR_BASE_PATH-N.sock
  $NVIDIA_DRA_LOCAL_IPC_DIR/shared-tensor-UID/shared-tensor-N.sock
      (in a pod with a GPU claim)
  $XDG_RUNTIME_DIR/shared-tensor-N.sock
  /tmp/shared-tensor-UID/shared-tensor-N.sock  (UID is the effective user)
where N is the index of the served device: 0 for host memory and for cuda:0. If no owner
listens on socket 0 and there is exactly one other owner, commands use that one and print
a note.`

// Run runs a command line of the program, without the program's name, and returns the exit status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(append([]string{}, args...)) // for nil, cobra uses the arguments of the process
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(root.ExecuteContext(ctx), stderr)
}

// newRootCommand builds the tree of commands. It has no global state: each run builds a new tree.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "sharedtensor",
		Short:             "Share models between the processes of a host, in place",
		Long:              rootHelp,
		Version:           endpoint.Version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              knownCommand,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return cli.UsageError(c, err) })
	root.AddGroup(&cobra.Group{ID: groupOwner, Title: "Owning and publishing:"},
		&cobra.Group{ID: groupClient, Title: "Looking and attaching:"},
		&cobra.Group{ID: groupCall, Title: "Calling functions of the owner:"},
		&cobra.Group{ID: groupHost, Title: "This host:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupOwner, newServeCommand(), newKeepCommand(), newUpgradeCommand(), newPublishCommand(), newRollbackCommand(), newWithdrawCommand())
	add(groupClient, newLsCommand(), newInspectCommand(), newGetCommand(), newPlaceCommand(), newWatchCommand(), newPingCommand())
	add(groupClient, newHoldersCommand(), newTopCommand(), newMetricsCommand())
	add(groupCall, newCallCommand(), newSubmitCommand(), newTasksCommand(), newWaitCommand(), newCancelCommand())
	add(groupCall, newEndpointsCommand(), newObjectsCommand(), newInvalidateCommand(), newReleaseCommand())
	add(groupHost, newDemoCommand(), newDoctorCommand(), newConfigCommand(), newBenchCommand(), newVersionCommand())
	root.AddCommand(newDemoProcessCommand())
	root.SetHelpCommand(newHelpCommand())
	root.SetHelpCommandGroupID(groupHost)
	root.SetCompletionCommandGroupID(groupHost)
	refuseUnknownShells(root)
	fitHelp(root)
	return root
}

// Groups of commands in help.
const (
	groupOwner  = "owner"
	groupClient = "client"
	groupCall   = "call"
	groupHost   = "host"
)

// refuseUnknownShells makes the completion command fail for a shell that it has no script for.
func refuseUnknownShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Example = "  source <(sharedtensor completion bash)"
			c.Args = knownCommand
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// knownCommand refuses a first word that is not a command, and suggests the nearest one.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return cli.Usagef(c, "there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return cli.Usagef(c, "there is no command %q", args[0])
}

// lastLines limits the wait for a reader of the last lines of a process.
const lastLines = time.Second

// report prints an error and returns the exit status. A reader of stderr that has stopped must not keep the process.
func report(err error, stderr io.Writer) int {
	w := logs.NewWriter(stderr)
	defer w.Close(lastLines)
	return cli.Report(err, w)
}
