// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	// go.mod has what the suites import only if a package of this module imports it, too.
	_ "sigs.k8s.io/karpenter/test/pkg/environment/common"
)
