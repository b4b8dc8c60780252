// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// minTopInterval is the shortest interval: Proxmox updates its data every ten seconds.
const minTopInterval = time.Second

// topOptions are the flags of top.
type topOptions struct {
	once            bool
	interval        time.Duration
	nodePool, order string
	format          output
}

func newTop(cluster *kubeCluster) *cobra.Command {
	from, options := &clusters{}, &topOptions{}
	command := &cobra.Command{
		Use:   "top",
		Short: "Show hosts, VMs and pods, and what Karpenter is doing",
		Long: `Show the hosts with their CPUs, memory, storages and NUMA cells, the VMs with their price
and pods, pending pods with the reason, and what Karpenter is doing.

On a terminal the view is updated until you press q:

  up, down, j, k   select a host or a VM
  enter            open it: host, VM, pods
  esc              go back
  s                sort by name, CPUs, memory, price or pods
  f                show only the VMs of one NodePool
  r                read again
  q                quit

Without a terminal, with --once, or with --output, it prints everything once.`,
		Example: `  kubectl proxmox top
  kubectl proxmox top --nodepool default --sort price --once
  kubectl proxmox top -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.check(); err != nil {
				return err
			}
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			settings, err := from.settings(command.Context())
			if err != nil {
				return err
			}
			v, err := newView(settings, cluster.proxmox)
			if err != nil {
				return err
			}
			source, err := newFleetSource(command.Context(), kube, v)
			if err != nil {
				return err
			}
			if out, ok := command.OutOrStdout().(*os.File); ok && !options.once && options.format.isText() && term.IsTerminal(int(out.Fd())) {
				return runTop(command.Context(), source.read, *options, command.InOrStdin(), out)
			}
			return printTop(command.Context(), source.read, *options, command.OutOrStdout())
		},
	}
	from.flagsOr(cluster, command)
	flags := command.Flags()
	flags.BoolVar(&options.once, "once", false, "print once and exit, also on a terminal")
	flags.DurationVar(&options.interval, "interval", 5*time.Second, "how often the view is updated")
	flags.StringVar(&options.nodePool, "nodepool", "", "show only the VMs of this NodePool")
	flags.StringVar(&options.order, "sort", string(fleet.ByName), fmt.Sprintf("order of hosts and VMs, one of %v", fleet.Orders()))
	options.format.flags(command)
	return command
}

func (o topOptions) check() error {
	if !slices.Contains(fleet.Orders(), fleet.Order(o.order)) {
		return fmt.Errorf("--sort: found %q, want one of %v", o.order, fleet.Orders())
	}
	if o.interval < minTopInterval {
		return fmt.Errorf("--interval: found %s, want at least %s", o.interval, minTopInterval)
	}
	return nil
}

// arrange applies the filter and the order.
func (o topOptions) arrange(m fleet.Map) fleet.Map {
	return m.OfNodePool(o.nodePool).Sorted(fleet.Order(o.order))
}

// printTop prints the map once.
func printTop(ctx context.Context, read func(context.Context) (fleet.Map, error), options topOptions, out io.Writer) error {
	m, err := read(ctx)
	if err != nil {
		return err
	}
	names := []string{}
	for _, pool := range m.NodePools {
		names = append(names, pool.Name)
	}
	if options.nodePool != "" && !slices.Contains(names, options.nodePool) {
		return fmt.Errorf("--nodepool: found %q, want one of %v", options.nodePool, names)
	}
	m = options.arrange(m)
	return options.format.print(out, m, func(out io.Writer) error {
		for _, line := range terminal.All(m) {
			fmt.Fprintln(out, line.Render(0, false))
		}
		return nil
	})
}

// runTop shows the live view until the user quits.
func runTop(ctx context.Context, read func(context.Context) (fleet.Map, error), options topOptions, in io.Reader, out io.Writer) error {
	model := newTopModel(func() (fleet.Map, error) { return read(ctx) }, options)
	_, err := tea.NewProgram(model, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	// Ctrl-C is a way to quit.
	if err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("showing the terminal view: %w", err)
	}
	return nil
}
