// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command conformance runs the end-to-end suites of Karpenter core against the controller, on a
// Kubernetes control plane and a simulated Proxmox cluster. The suites are compiled from the
// module that the controller uses, without changes.
//
// Each spec runs in its own process, one after the other in a world: a network namespace with
// its own control plane, Proxmox cluster and controller. Several worlds run at the same time.
// The result of each spec is a file, so a run that is interrupted continues where it ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	// go.mod has what the suites import only if a package of this module imports it, too.
	_ "sigs.k8s.io/karpenter/test/pkg/environment/common"
)

// options are the flags of the command.
type options struct {
	world worldOptions
	// dir has the suites' binaries, the results and the reports.
	dir    string
	suites []string
	focus  *regexp.Regexp
	// representative selects the specs that represent all others.
	representative bool
	fresh          bool
	worlds         int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 2 && os.Args[1] == worldCommand {
		err = serveWorld(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:])
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "conformance: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	lists, err := readLists()
	if err != nil {
		return err
	}
	r := &runner{options: o, lists: lists, store: store{dir: filepath.Join(o.dir, "results")}}
	if err := r.selectSpecs(ctx); err != nil {
		return err
	}
	runErr := r.run(ctx)
	return errors.Join(runErr, r.report(os.Stdout))
}

func parse(args []string) (options, error) {
	var o options
	var suites, focus string
	fs := flag.NewFlagSet("conformance", flag.ContinueOnError)
	fs.StringVar(&suites, "suites", "regression,disruption", "suites to run")
	fs.StringVar(&focus, "focus", "", "regular expression that selects specs by \"suite/file text\"")
	fs.BoolVar(&o.representative, "representative", false, "run only the representative specs")
	fs.BoolVar(&o.fresh, "fresh", false, "repeat specs that have passed with this controller")
	fs.IntVar(&o.worlds, "worlds", 1, "number of worlds that run at the same time")
	paths := map[string]*string{
		"dir": &o.dir, "kubeplane": &o.world.Kubeplane, "controller": &o.world.Controller, "helm": &o.world.Helm, "chart": &o.world.Chart, "core": &o.world.Core,
	}
	for name, path := range paths {
		fs.StringVar(path, name, "", "path; make conformance sets it")
	}
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.suites = strings.Split(suites, ",")
	for name, path := range paths {
		if _, err := os.Stat(*path); err != nil {
			return o, fmt.Errorf("--%s: %q not found; make conformance sets all paths", name, *path)
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return o, fmt.Errorf("--%s: %w", name, err)
		}
		*path = absolute
	}
	if o.worlds < 1 {
		return o, fmt.Errorf("--worlds: found %d, want at least 1", o.worlds)
	}
	var err error
	if o.focus, err = regexp.Compile(focus); err != nil {
		return o, fmt.Errorf("--focus: %w", err)
	}
	return o, nil
}
