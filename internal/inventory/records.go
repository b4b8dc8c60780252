// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"reflect"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// record changes the Records. It notifies the subscribers if relevant is true and something changed.
func (i *Inventory) record(relevant bool, change func(*declared.Records)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.records
	if change(&i.records); !reflect.DeepEqual(i.records, before) {
		i.publish(relevant)
	}
}

// SetMaintenance replaces the Hosts that are in maintenance in addition to those in HA
// maintenance. A Host that does not exist has no effect.
func (i *Inventory) SetMaintenance(hosts declared.Maintenance) {
	i.record(true, func(r *declared.Records) { r.Maintenance, r.MaintenanceUnknown = maps.Clone(hosts), false })
}

// SetMaintenanceUnknown records that the Hosts in maintenance could not be read at the
// start. SetMaintenance ends it.
func (i *Inventory) SetMaintenanceUnknown() {
	i.record(true, func(r *declared.Records) { r.MaintenanceUnknown = true })
}

// SetFences replaces the Hosts that are declared as powered off.
func (i *Inventory) SetFences(fences map[observed.HostName]declared.Fence) {
	i.record(true, func(r *declared.Records) { r.Fences = maps.Clone(fences) })
}

// SetSleeping replaces the records about Hosts that were shut down to save energy.
func (i *Inventory) SetSleeping(hosts map[observed.HostName]declared.Sleep) {
	i.record(true, func(r *declared.Records) {
		i.leads = true
		r.Sleeping, r.SleepingOutdated, r.SleepingFailure = maps.Clone(hosts), false, ""
	})
}

// SetSleepingOutdated is SetSleeping for records that were read before this process became the
// leader. The leader may change them until then, so no request is sent to a Host that may be
// asleep. SetSleeping ends it; afterwards SetSleepingOutdated has no effect.
func (i *Inventory) SetSleepingOutdated(hosts map[observed.HostName]declared.Sleep) {
	i.record(true, func(r *declared.Records) {
		if !i.leads {
			r.Sleeping, r.SleepingOutdated, r.SleepingFailure = maps.Clone(hosts), true, ""
		}
	})
}

// SetSleepingFailure records why the leader cannot read the records, which remain outdated until
// SetSleeping. It notifies no subscribers: they would make the leader read again at once.
func (i *Inventory) SetSleepingFailure(err error) {
	i.record(false, func(r *declared.Records) {
		if r.SleepingOutdated {
			r.SleepingFailure = err.Error()
		}
	})
}
