// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"

	"golang.org/x/net/dns/dnsmessage"
)

const dnsPort = 53

// answerDNS answers that no name exists, so guests do not wait for timeouts.
func answerDNS(packet []byte, from net.Addr) ([]byte, net.Addr) {
	var query dnsmessage.Parser
	head, err := query.Start(packet)
	if err != nil || head.Response {
		return nil, nil
	}
	questions, err := query.AllQuestions()
	if err != nil {
		return nil, nil
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true,
			RCode: dnsmessage.RCodeNameError,
		},
		Questions: questions,
	}
	data, err := reply.Pack()
	if err != nil {
		return nil, nil
	}
	return data, from
}
