// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pve-hook is a hookscript for templates: it runs, on the Proxmox host, the scripts that are named for a VM of
// Karpenter, and pins its vCPUs. See docs/hooks.md.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hook"
)

func main() {
	if err := hook.ThisHost(os.Stderr).Run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pve-hook: error:", err)
		os.Exit(1)
	}
}
