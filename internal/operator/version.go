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

// Version returns the version of the provider, which the release build or Go's build
// info sets, and the versions of the embedded Karpenter and of Go.
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
