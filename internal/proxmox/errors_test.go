// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer reply
		kind   error
		text   string
	}{
		"message_in_the_body": {answer: failed(500, "VM is locked (backup)"), kind: proxmox.ErrLocked, text: "VM is locked (backup)"},
		"reason_phrase_alone_as_before_8.4": {
			answer: reply{status: 500, reason: "can't lock file '/var/lock/qemu-server/lock-303.conf' - got timeout", body: `{"data":null}`},
			kind:   proxmox.ErrLocked, text: "lock-303.conf",
		},
		"nothing_was_started": {answer: failed(500, "got no worker upid - start worker failed"), kind: proxmox.ErrBusy, text: "no worker"},
		"host_away_595_with_an_empty_body": {
			answer: reply{status: 595, reason: "No route to host"}, kind: proxmox.ErrHostUnreachable, text: "No route to host",
		},
		"host_broke_off_596": {
			answer: reply{status: 596, reason: "Connection timed out"}, kind: proxmox.ErrUnknownOutcome, text: "Connection timed out",
		},
		"load_balancer": {answer: reply{status: 504, body: "<html>"}, kind: proxmox.ErrUnknownOutcome, text: "504"},
		"credentials":   {answer: reply{status: 401, reason: "Authentication failed!"}, kind: proxmox.ErrUnauthorized, text: "Authentication failed!"},
		"answer_that_is_no_JSON": {
			answer: reply{status: 200, body: "<html>welcome</html>"}, kind: proxmox.ErrUnknownOutcome, text: "not a Proxmox VE API",
		},
		"answer_without_a_task": {answer: data(`null`), kind: proxmox.ErrUnknownOutcome, text: "instead of a task"},
		"redirect":              {answer: reply{status: 301, body: ""}, kind: proxmox.ErrUnreachable, text: "301"},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, host := clientOf(t, always(test.answer))
			_, err := c.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200})
			g.Expect(err).To(MatchError(test.kind))
			g.Expect(err.Error()).To(ContainSubstring(test.text))
			g.Expect(err.Error()).To(HavePrefix("cloning template 9001 on host pve1 to VM 200: "))
			g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
			g.Expect(err.Error()).NotTo(ContainSubstring(testSecret))
			g.Expect(host.requests()).To(HaveLen(1), "a write is never repeated")
		})
	}
}

func TestErrorsForbidden(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(failed(403, "Permission check failed (/vms/9001, VM.Clone)")))
		_, err := c.CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9001, VMID: 200})
		var forbidden *proxmox.ForbiddenError
		g.Expect(errors.As(err, &forbidden)).To(BeTrue(), "%v", err)
		g.Expect(forbidden.Path).To(Equal("/vms/9001"))
		g.Expect(forbidden.Privilege).To(Equal("VM.Clone"))
	})
}

func TestErrorsInvalid(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(reply{status: 400, reason: "Parameter verification failed.",
			body: `{"data":null,"errors":{"tags":"invalid format - invalid characters in tag\n","cores":"value must have a minimum value of 1"},` +
				`"message":"Parameter verification failed.\n"}`}))
		err := c.UpdateVM(t.Context(), "pve1", 200, proxmox.ConfigChange{Set: map[string]string{"tags": "=", "cores": "0"}})
		var invalid *proxmox.InvalidError
		g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
		g.Expect(invalid.Parameters).To(HaveKeyWithValue("cores", "value must have a minimum value of 1"))
		g.Expect(err.Error()).To(HaveSuffix("refused: cores: value must have a minimum value of 1; tags: invalid format - invalid characters in tag"))
	})
}

func TestErrorsOfRead(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(reply{status: 596, reason: "Broken pipe"}))
		g.Expect(c.VMConfig(t.Context(), "pve1", 200)).Error().To(MatchError(proxmox.ErrHostUnreachable))
	})
}

// A VM call that fails for a missing storage does not mean that the VM is missing.
func TestErrorsNotFound(t *testing.T) {
	t.Parallel()
	gone := failed(500, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist")
	noStorage := failed(500, "storage 'nfs' does not exist")
	for name, test := range map[string]struct {
		answer reply
		call   func(*testing.T, proxmox.Client) error
		kind   error
	}{
		"config_of_no_VM": {gone, func(t *testing.T, c proxmox.Client) error {
			_, err := c.VMConfig(t.Context(), "pve1", 200)
			return err
		}, proxmox.ErrNotFound},
		"destroying_with_a_storage_gone": {noStorage, func(t *testing.T, c proxmox.Client) error {
			_, err := c.DestroyVM(t.Context(), "pve1", 200)
			return err
		}, proxmox.ErrFailed},
		"listing_a_storage_that_is_gone": {noStorage, func(t *testing.T, c proxmox.Client) error {
			_, err := c.Volumes(t.Context(), "pve1", "nfs", "iso")
			return err
		}, proxmox.ErrNotFound},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, _ := clientOf(t, always(test.answer))
			g.Expect(test.call(t, c)).To(MatchError(test.kind))
		})
	}
}

// Proxmox has no status for a missing pool.
func TestErrorsMissingPool(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(failed(500, "pool 'nothing' does not exist")))
		g.Expect(c.PoolExists(t.Context(), "nothing")).To(BeFalse())
	})
}

func TestErrorsEmptyPathParameter(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, host := clientOf(t, always(data(`{}`)))
		g.Expect(c.VMConfig(t.Context(), "", 200)).Error().To(MatchError(ContainSubstring("{node}")))
		g.Expect(c.DestroyVM(t.Context(), "pve1", 0)).Error().To(MatchError(ContainSubstring("{vmid}")))
		g.Expect(c.Task(t.Context(), "UPID:foo")).Error().To(MatchError(ContainSubstring("UPID:foo")))
		g.Expect(host.requests()).To(BeEmpty())
	})
}

func TestSecret(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cfg := proxmox.ClusterConfig{Region: "dc1", TokenSecret: testSecret, Password: "letmein"}
	for _, text := range formatted(cfg) {
		g.Expect(text).NotTo(ContainSubstring(testSecret))
		g.Expect(text).NotTo(ContainSubstring("letmein"))
	}
}

func formatted(v any) []string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return []string{fmt.Sprint(v), fmt.Sprintf("%+v", v), fmt.Sprintf("%#v", v), string(encoded)}
}

// An error of the agent is not a guest without addresses.
func TestGuestAddressesAgentError(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(data(`{"result":{"error":{"class":"GenericError","desc":"frozen"}}}`)))
		_, err := c.GuestAddresses(t.Context(), "pve1", 101)
		g.Expect(err).To(MatchError("querying the guest agent of VM 101 on host pve1: it reports no interfaces: frozen"))
	})
}

func TestTaskLogNotFound(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c, _ := clientOf(t, always(data(`{"n":1,"t":"unable to open file - No such file or directory"}`)))
		g.Expect(c.TaskLog(t.Context(), testUPID)).Error().To(MatchError(proxmox.ErrNotFound))
	})
}
