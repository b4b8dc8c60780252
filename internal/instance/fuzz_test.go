// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// An intent is read, or there is an error that names annotation and Claim. What was read is written
// unchanged.
func FuzzReadIntent(f *testing.F) {
	for _, rest := range []string{
		``, `,"cores":{"count":2}`, `,"cores":-1,"disk":-1`, `,"binding":{"cells":null,"cpus":"0-99999999999","pin":[0]}`,
		`,"network":{"interfaces":{"net0":{"address4":"::ffff:10.0.0.1/120","gateway6":"fe80::1%eth0"}}},"time":"9999-12-31T23:59:59.9999999999-23:59"`,
	} {
		f.Add(`{"claim":"uid","region":"r","host":"h","vmid":20001` + rest + `}`)
	}
	for _, seed := range []string{`null`, `[]`, ``} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		claim := claimWithIntent(raw)
		in, ok, err := ReadIntent(claim)
		if err != nil && (!strings.Contains(err.Error(), v1alpha1.AnnotationLaunchIntent) || !strings.Contains(err.Error(), claim.Name)) {
			t.Errorf("the error names neither annotation nor Claim: %v", err)
		}
		if ok != (err == nil) {
			t.Errorf("found %t with %v", ok, err)
		}
		if !ok {
			return
		}
		if in.ProviderID() != claim.Status.ProviderID || in.ClaimUID != claim.UID || in.Host == "" {
			t.Errorf("an intent of another VM was read: %+v", in)
		}
		_ = in.Reservation(claim)
		again, ok, err := ReadIntent(claimWithIntent(in.Encode()))
		if !ok || err != nil || again.Encode() != in.Encode() {
			t.Errorf("%s was written and read as %s (%v)", in.Encode(), again.Encode(), err)
		}
	})
}

// Progress can always be read, continued and written.
func FuzzReadProgress(f *testing.F) {
	f.Add(`{"phase":"Started","timeline":{"Planned":0,"Started":7.25}}`)
	f.Add(`{"phase":["Later"],"timeline":7}`)
	f.Add(`{"timeline":{"Planned":1e300,"":-1e300}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		claim := claimWithIntent("")
		claim.Annotations[v1alpha1.AnnotationLaunchProgress] = raw
		p := ReadProgress(claim)
		p.Reach(PhaseStarted, 0)
		claim.Annotations[v1alpha1.AnnotationLaunchProgress] = p.Encode()
		again := ReadProgress(claim)
		if again.Encode() != p.Encode() || again.Phase != PhaseStarted {
			t.Errorf("%q was continued as %s and read as %s", raw, p.Encode(), again.Encode())
		}
	})
}
