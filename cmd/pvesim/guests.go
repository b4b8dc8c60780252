// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

// sharedNetwork connects all guests of a bridge.
const sharedNetwork = "shared"

// guestSettings select what runs in the VMs.
type guestSettings struct {
	guests, image, dir, kernel, initrd, args, acceleration, network string
}

func (g *guestSettings) addFlags(flags *flag.FlagSet) {
	flags.StringVar(&g.guests, "guests", "cloud-init",
		"what runs in the VMs: cloud-init (simulated; reads its CD-ROM and joins Kubernetes), qemu (a QEMU process per VM), cooperative or deaf")
	flags.StringVar(&g.image, "guest-image", "", "disk image of the default templates, for --guests qemu")
	flags.StringVar(&g.dir, "guest-dir", "", "where to create the temporary directory for the disks of QEMU guests; empty: the system's")
	flags.StringVar(&g.kernel, "guest-kernel", "", "kernel that QEMU loads itself; empty: VMs boot from their disks")
	flags.StringVar(&g.initrd, "guest-initrd", "", "initial RAM disk of --guest-kernel")
	flags.StringVar(&g.args, "guest-kernel-args", "root=LABEL=root console=ttyS0", "arguments of --guest-kernel")
	flags.StringVar(&g.network, "guest-network", sharedNetwork, "network of QEMU guests: shared (one per bridge and VLAN with DHCP; this machine is its gateway) or user (one per NIC, with NAT)")
	flags.StringVar(&g.acceleration, "guest-acceleration", "", "kvm or tcg; empty: kvm if --guest-kernel boots with it, or else tcg")
}

// runtime sets the runtime in the options of the simulator. The caller calls stop after the simulator is closed.
func (g *guestSettings) runtime(s *settings, out io.Writer, options *pvesim.Options) (stop func(), err error) {
	nothing := func() {}
	if g.guests != "qemu" && g.image+g.dir+g.kernel+g.initrd+g.acceleration != "" {
		return nil, fmt.Errorf("parsing flags: --guest-image, --guest-dir, --guest-kernel, --guest-initrd and --guest-acceleration need --guests qemu, not %s", g.guests)
	}
	switch g.guests {
	case "cloud-init":
		options.Guests = guest.NewRuntime(guest.Options{BootTime: s.bootTime})
		return nothing, nil
	case "cooperative":
		options.Guests = pvesim.CooperativeGuests{}
		return nothing, nil
	case "deaf":
		options.Guests = pvesim.UnresponsiveGuests{}
		return nothing, nil
	case "qemu":
		return g.qemuRuntime(out, options)
	}
	return nil, fmt.Errorf("parsing flags: --guests %q is not one of cloud-init, qemu, cooperative, deaf", g.guests)
}

func (g *guestSettings) qemuRuntime(out io.Writer, options *pvesim.Options) (stop func(), err error) {
	if g.image != "" {
		if g.image, err = filepath.Abs(g.image); err != nil {
			return nil, fmt.Errorf("parsing flags: --guest-image: %w", err)
		}
		if _, err := os.Stat(g.image); err != nil {
			return nil, fmt.Errorf("parsing flags: --guest-image: %w", err)
		}
	}
	if g.network != sharedNetwork && g.network != "user" {
		return nil, fmt.Errorf("parsing flags: --guest-network %q is not one of shared, user", g.network)
	}
	runtime, err := qemu.NewRuntime(qemu.Options{
		Dir: g.dir, Kernel: g.kernel, Initrd: g.initrd, KernelArgs: g.args, Acceleration: g.acceleration,
		Log: func(message string) { fmt.Fprintln(out, message) },
	})
	if err != nil {
		return nil, fmt.Errorf("preparing QEMU guests: %w", err)
	}
	options.Guests, options.Dir, options.TemplateImage = runtime, runtime.Dir(), g.image
	if g.network != sharedNetwork {
		return runtime.Close, nil
	}
	shared, err := network.New(network.Options{Dir: filepath.Join(runtime.Dir(), "network")})
	if err != nil {
		runtime.Close()
		return nil, fmt.Errorf("preparing QEMU guests: %w", err)
	}
	runtime.SetNetwork(shared)
	fmt.Fprintf(out, "Guests: this machine is %s\n", network.DefaultBridge().Gateway4.Addr())
	return func() {
		_ = shared.Close() // only sockets, which are removed with the directory
		runtime.Close()
	}, nil
}
