// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"runtime"
	"runtime/debug"

	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
)

const coreModule = "sigs.k8s.io/karpenter"

// Version says what this binary is: the provider's own version, as the release build
// sets it or else as Go stamped it, and that of the Karpenter inside.
func Version() string {
	own, core := coreoperator.Version, "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		if own == "unspecified" && info.Main.Version != "" {
			own = info.Main.Version
		}
		for _, dependency := range info.Deps {
			if dependency.Path == coreModule {
				core = dependency.Version
			}
		}
	}
	return fmt.Sprintf("karpenter-provider-proxmox %s (Karpenter %s, %s)", own, core, runtime.Version())
}
