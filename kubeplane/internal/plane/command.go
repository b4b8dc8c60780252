// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Binary is what this package must know about the binary that it is linked into.
type Binary struct {
	// Programs are the names under which the binary acts as another program.
	Programs []string
	// CheckFeatureGates returns an error for an invalid value of --feature-gates. Only the binary knows the gates.
	CheckFeatureGates func(string) error
	// Version is the version of Kubernetes inside.
	Version string
}

// NewCommand makes the command line of kubeplane.
func NewCommand(b Binary) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubeplane",
		Short: "A real Kubernetes control plane as one binary, for tests and demonstrations",
		Long: "A real Kubernetes control plane as one binary, for tests and demonstrations.\n\n" +
			"It also acts as each of these programs, called by a link of that name (see `kubeplane link`)\n" +
			"or with the name as first argument: " + strings.Join(b.Programs, ", ") + ".",
		Version:       b.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newUpCommand(b), newLinkCommand(b))
	return root
}

func newUpCommand(b Binary) *cobra.Command {
	var o Options
	var quiet, exitWithParent bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Bring a control plane up and keep it until SIGINT or SIGTERM",
		Long: "Bring a control plane up on random ports of 127.0.0.1 and keep it until SIGINT or SIGTERM.\n\n" +
			"Progress goes to standard error. When a pod can be created, scheduled and controlled, standard output gets\n" +
			"one line, `export KUBECONFIG=...`. Nothing is left running, however kubeplane ends.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.complete(b); err != nil {
				return err
			}
			progress := c.ErrOrStderr()
			if quiet {
				progress = io.Discard
			}
			ctx, stop := context.WithCancelCause(c.Context())
			defer stop(nil)
			if exitWithParent {
				if err := endWithParent(stop); err != nil {
					return err
				}
			}
			ctx, restore := signal.NotifyContext(ctx, stopSignals()...)
			defer restore()
			return Up(ctx, o, c.OutOrStdout(), progress)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for everything: new, empty, or of an earlier kubeplane (its content is replaced), "+
		"and kept (default: a temporary one, removed at the end)")
	f.BoolVar(&o.Keep, "keep", false, "keep the temporary directory, for its logs")
	f.DurationVar(&o.NodeMonitorGracePeriod, "node-monitor-grace-period", 16*time.Second, "how long a Node may be silent before it counts as dead")
	f.StringVar(&o.FeatureGates, "feature-gates", "", "feature gates for all Kubernetes components: A=true,B=false")
	f.StringVar(&o.RuntimeConfig, "runtime-config", "", "API versions to serve beyond the stable ones, as some feature gates need: api/beta=true")
	f.BoolVar(&o.Audit, "audit", false, "record every API request in logs/audit.log")
	f.IPSliceVar(&o.ServerIPs, "server-ip", nil, "further addresses that the API server's certificate is good for, for clients that come through a forwarder")
	f.StringVar(&o.KubeconfigOut, "kubeconfig-out", "", "also write the kubeconfig to this file")
	f.StringVar(&o.ReadyFile, "ready-file", "", "write this file, as JSON, when the plane is ready; remove it at the end")
	f.BoolVar(&exitWithParent, "exit-with-parent", false, "also end when the parent process ends, or when standard input is a pipe and closes")
	f.BoolVar(&quiet, "quiet", false, "no progress on standard error")
	return c
}

// stopSignals leaves SIGHUP out under nohup, whose point is to have it ignored.
func stopSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// complete checks what can be checked before anything is started, and makes paths absolute.
func (o *Options) complete(b Binary) error {
	if o.NodeMonitorGracePeriod <= 0 {
		return fmt.Errorf("--node-monitor-grace-period is %s; it must be more than zero, such as 16s", o.NodeMonitorGracePeriod)
	}
	if o.FeatureGates != "" {
		if err := b.CheckFeatureGates(o.FeatureGates); err != nil {
			return fmt.Errorf("--feature-gates is %q, %w; it must be like A=true,B=false", o.FeatureGates, err)
		}
	}
	for _, file := range []struct {
		flag string
		path *string
	}{{"--kubeconfig-out", &o.KubeconfigOut}, {"--ready-file", &o.ReadyFile}} {
		if err := completeFile(file.flag, file.path); err != nil {
			return err
		}
	}
	return nil
}

// completeFile also removes what an earlier plane left: a stale ready file is a lie.
func completeFile(flag string, path *string) error {
	if *path == "" {
		return nil
	}
	absolute, err := filepath.Abs(*path)
	if err != nil {
		return fmt.Errorf("resolving %s: %w", flag, err)
	}
	if info, err := os.Stat(filepath.Dir(absolute)); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is %s, but %s is not a directory; make it first", flag, *path, filepath.Dir(absolute))
	}
	if err := os.Remove(absolute); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing what an earlier kubeplane left at %s: %w", flag, err)
	}
	*path = absolute
	return nil
}
