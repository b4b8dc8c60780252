// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pve-hook is a hookscript for templates. On the Proxmox host it runs the scripts of a VM of Karpenter and pins the
// VM's vCPUs. It also publishes the topology of the host. See docs/hooks.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hook"
)

func main() {
	if err := hook.ThisHost(os.Stdout, os.Stderr).Run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pve-hook: error:", err)
		os.Exit(1)
	}
}
