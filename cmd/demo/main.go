// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows the product on one machine: a real control plane, a simulated Proxmox
// cluster, the controller, and a tour of what they do. With --playground they keep running for
// you to try things out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

type options struct {
	playground bool
	kubeplane  string
	controller string
	speed      float64
	keep       bool
	dir        string
	// guests is "simulated" or "qemu", and images the directory of the images of real guests.
	guests, images string
}

func main() {
	// Without a logger, controller-runtime prints a stack trace.
	crlog.SetLogger(logr.Discard())
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, o, NewScreen(os.Stdout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: "+err.Error())
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.BoolVar(&o.playground, "playground", false, "keep everything running until Ctrl-C")
	fs.StringVar(&o.kubeplane, "kubeplane", ".cache/bin/kubeplane", "path of the kubeplane binary")
	fs.StringVar(&o.controller, "controller", ".cache/bin/controller", "path of the controller binary")
	fs.Float64Var(&o.speed, "speed", 1, "speed of the simulated Proxmox relative to a real one")
	fs.BoolVar(&o.keep, "keep", false, "keep the logs if the demo succeeds")
	fs.StringVar(&o.guests, "guests", "simulated", "what runs in the VMs: simulated, or qemu for real Linux")
	fs.StringVar(&o.images, "images", ".cache/guest", "directory of the images of real guests")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; --help lists the flags", fs.Arg(0))
	}
	if o.speed <= 0 {
		return o, fmt.Errorf("--speed: found %g, want a number above zero, for example 1", o.speed)
	}
	if o.guests != "simulated" && o.guests != "qemu" {
		return o, fmt.Errorf("--guests: found %q, want simulated or qemu", o.guests)
	}
	var err error
	if o.kubeplane, err = findBinary("kubeplane", o.kubeplane); err != nil {
		return o, err
	}
	if o.controller, err = findBinary("controller", o.controller); err != nil {
		return o, err
	}
	o.dir, err = os.MkdirTemp("", "karpenter-proxmox-demo-")
	return o, err
}

func run(ctx context.Context, o options, screen *Screen) (err error) {
	began := time.Now()
	defer func() {
		if err == nil && !o.keep {
			err = os.RemoveAll(o.dir)
			return
		}
		screen.Print(terminal.Text("Logs: " + o.dir))
		screen.Print(terminal.Styled("  controller/controller.log, kubernetes/plane/logs, proxmox-requests.log", terminal.Dim))
	}()
	screen.Print(terminal.Styled("Starting", terminal.Bold))
	stage, err := startStage(ctx, o, func(what string) {
		screen.Print(terminal.Styled("  "+clock(time.Since(began))+"  ", terminal.Dim).And(what))
	})
	if err != nil {
		return err
	}
	defer stage.Close()
	if o.playground {
		return playground(ctx, o, stage, NewReporter(screen))
	}
	return show(ctx, stage, screen, began)
}

// show runs the tour, checks the result and prints the summary.
func show(ctx context.Context, stage *Stage, screen *Screen, began time.Time) error {
	summary := &Summary{}
	summary.Add("control plane, Proxmox and controller started", time.Since(began))
	report := NewReporter(screen)
	err := NewTour(stage, report, summary).Run(ctx)
	var problems []string
	if err == nil {
		problems, err = stage.verify(ctx, report.Joined(), summary)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		return err
	}
	summary.Add("total", time.Since(began))
	screen.Print(terminal.Text(""))
	for _, l := range summary.Lines() {
		screen.Print(l)
	}
	if len(problems) == 0 {
		screen.Print(terminal.Styled("Everything worked and was cleaned up.", terminal.Green))
		screen.Print(terminal.Text("Run " + stage.playgroundCommand() + " to keep the same setup running and try things out."))
		return nil
	}
	for _, problem := range problems {
		screen.Print(terminal.Styled("  ✗ "+problem, terminal.Red))
	}
	return fmt.Errorf("%d checks failed", len(problems))
}
