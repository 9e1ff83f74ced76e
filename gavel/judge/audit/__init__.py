"""How far to trust a judge: statistics on groups that it has judged.

    agreement(groups, "success").tau      # IntervalEstimate(value=.71, low=.64, high=.77, groups=120)
    judge_vs_judge(groups).icc_mean       # inter-rater reliability of a jury
    bias_report(groups).position_slope    # no reference needed

`agreement` compares with a reference, and judges or calls with each other; `bias` needs neither; `bootstrap` gives the
intervals, `golden` tests groups of known order.
"""
