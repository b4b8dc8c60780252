// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// checkSecurityGroups checks whether the security groups exist. Proxmox accepts rules
// for unknown groups, and then blocks all traffic of the VM.
func checkSecurityGroups(z zone) *problem {
	have := z.facts(poll.FactSecurityGroups).SecurityGroups
	if have == nil {
		return nil
	}
	var missing []string
	for _, group := range z.class.Spec.SecurityGroups {
		if !have[group.Name] && !slices.Contains(missing, group.Name) {
			missing = append(missing, group.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	commands := make([]string, 0, len(missing))
	for _, group := range missing {
		commands = append(commands, "pvesh create /cluster/firewall/groups --group "+group)
	}
	return z.regionProblem("spec.securityGroups: %s; run: %s, and add rules", doNotExist("security group", missing), strings.Join(commands, " && "))
}

func doNotExist(noun string, names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("%s %q does not exist", noun, names[0])
	}
	return fmt.Sprintf("%ss %q do not exist", noun, names)
}
