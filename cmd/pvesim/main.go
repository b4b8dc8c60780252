// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pvesim runs a simulated Proxmox VE cluster: an HTTPS API that any Proxmox client can talk to, and an admin port
// with a status page, recorded requests and faults.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// version is set by the release build.
var version = "dev"

type settings struct {
	listen, admin, scenario, version, caOut string
	showVersion                             bool
	hosts                                   int
	speed                                   float64
	seed                                    uint64
	bootTime                                time.Duration
	guests                                  guestSettings
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pvesim:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has no effect when the process exits
	}
}

func parse(args []string, out io.Writer) (*settings, error) {
	var s settings
	flags := flag.NewFlagSet("pvesim", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8006", "address of the API")
	flags.StringVar(&s.admin, "admin-listen", "127.0.0.1:8007", "address of the admin API and status page; empty: none")
	flags.StringVar(&s.scenario, "scenario", "", "YAML or JSON file that describes the cluster; empty: a small default one")
	flags.IntVar(&s.hosts, "hosts", 3, "number of hosts of the default cluster")
	flags.StringVar(&s.version, "pve-version", "", "8.4 or 9.2; empty: the scenario's version, or 8.4")
	flags.Float64Var(&s.speed, "speed", 0, "how many times faster than real time; 0: the scenario's speed, or 1")
	flags.StringVar(&s.caOut, "ca-out", "", "file to write the CA certificate to; empty: one in the temporary directory")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of faults with a probability")
	flags.BoolVar(&s.showVersion, "version", false, "print the version of the simulator and exit")
	s.guests.addFlags(flags)
	flags.DurationVar(&s.bootTime, "boot-time", 5*time.Second, "real time that a cloud-init guest takes to boot")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("parsing flags: %q is not a flag", flags.Arg(0))
	case s.hosts < 1 || s.hosts > 200:
		return nil, fmt.Errorf("parsing flags: --hosts %d is not between 1 and 200", s.hosts)
	case s.version != "" && s.version != "8.4" && s.version != "9.2":
		return nil, fmt.Errorf("parsing flags: --pve-version %q is neither 8.4 nor 9.2", s.version)
	case s.speed < 0:
		return nil, fmt.Errorf("parsing flags: --speed %v is negative", s.speed)
	}
	return &s, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s, err := parse(args, out)
	if err != nil {
		return err
	}
	if s.showVersion {
		_, err := fmt.Fprintf(out, "pvesim %s (%s)\n", version, runtime.Version())
		return err
	}
	scenario := pvesim.DefaultScenario(s.hosts)
	if s.scenario != "" {
		if scenario, err = pvesim.LoadScenario(s.scenario); err != nil {
			return err
		}
	}
	if s.version != "" {
		scenario.Version = s.version
	}
	options := pvesim.Options{Speed: s.speed, Listen: s.listen, AdminListen: s.admin, Seed: s.seed}
	stop, err := s.guests.runtime(s, out, &options)
	if err != nil {
		return err
	}
	defer stop()
	sim, err := pvesim.New(scenario, options)
	if err != nil {
		return err
	}
	defer sim.Close()
	if err := sim.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	ca := s.caOut
	if ca == "" {
		ca = filepath.Join(os.TempDir(), fmt.Sprintf("pvesim-ca-%d.pem", os.Getpid()))
		defer func() { _ = os.Remove(ca) }()
	}
	if err := os.WriteFile(ca, sim.CAPEM(), 0o644); err != nil { //nolint:gosec // a certificate is public
		return fmt.Errorf("writing CA certificate: %w", err)
	}
	announce(out, sim, scenario, ca)
	<-ctx.Done()
	return nil
}

func announce(out io.Writer, sim *pvesim.Simulator, scenario *pvesim.Scenario, ca string) {
	fmt.Fprintf(out, "API:   %s (Proxmox VE %s, %d hosts)\n", sim.URL(), scenario.Version, len(scenario.Hosts))
	fmt.Fprintf(out, "CA:    %s\n", ca)
	for _, u := range scenario.Users {
		for _, t := range u.Tokens {
			fmt.Fprintf(out, "Token: %s!%s=%s\n", u.ID, t.ID, t.Secret)
		}
	}
	if sim.AdminURL() != "" {
		fmt.Fprintf(out, "Admin: %s\n", sim.AdminURL())
	}
}
