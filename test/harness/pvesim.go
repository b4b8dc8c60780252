// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// PVESim is a simulated Proxmox cluster in its own process. Only its API is reachable.
type PVESim struct {
	Cluster Cluster
	API     *API

	process *process
}

var announcedURL = regexp.MustCompile(`(?m)^API: +(https://\S+) `)

// StartPVESim runs the pvesim binary with the default cluster of a Proxmox VE version and
// additional flags.
func StartPVESim(ctx context.Context, binary, dir, version string, flags ...string) (*PVESim, error) {
	ca, log := filepath.Join(dir, "pvesim-ca.pem"), filepath.Join(dir, "pvesim.log")
	args := append([]string{"--listen", "127.0.0.1:0", "--admin-listen", "", "--ca-out", ca, "--pve-version", version}, flags...)
	p, err := startProcess("pvesim", log, exec.Command(binary, args...))
	if err != nil {
		return nil, err
	}
	s := &PVESim{process: p}
	err = until(ctx, time.Minute, p, func(context.Context) error {
		content, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		found := announcedURL.FindSubmatch(content)
		if found == nil {
			return errors.New("not serving yet")
		}
		certificate, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		s.Cluster = Cluster{
			Region: "simulated", URLs: []string{string(found[1])}, CA: string(certificate),
			TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
		}
		return nil
	})
	if err == nil {
		s.API, err = NewAPI(s.Cluster)
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("starting pvesim: %w", err)
	}
	return s, nil
}

// Stop ends the process.
func (s *PVESim) Stop() { s.process.stop(10 * time.Second) }
